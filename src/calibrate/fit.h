// From what was measured to a profile: each parameter is changed until the simulation of what tells
// it takes as long as the measurement did.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "src/bench/result/statistics.h"
#include "src/calibrate/observation.h"
#include "src/device/sim/rnic_profile.h"
#include "verbena/status.h"

namespace verbena::calibrate {

struct Measured {
  Observation observation;
  bench::Summary ns;
};

struct Fitted {
  std::vector<sim::ParameterText> parameters;
  std::vector<double> simulated_ns;  // by observation, with these
};

// What the simulation of an observation takes with these parameters, in nanoseconds.
using Simulate = std::function<Result<double>(const std::vector<sim::ParameterText>& parameters,
                                              const Observation& observation)>;

// `start`: all parameters of a profile; the observations tell some of them. What no value of its
// parameter explains, such as less time than all else takes, is left at the nearest one that does,
// from 0.1 ns to 5 us: compare `simulated_ns` with what was measured.
Result<Fitted> fit(std::vector<sim::ParameterText> start, const std::vector<Measured>& measured,
                   const Simulate& simulate);

}  // namespace verbena::calibrate
