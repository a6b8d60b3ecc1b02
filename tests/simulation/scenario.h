// One seed of the deterministic simulation: a cluster, a point of the benchmark, and faults.
#pragma once

#include <cstdint>
#include <string>

#include "src/bench/experiment/point.h"
#include "src/device/sim/fault_schedule_for_test.h"
#include "verbena/status.h"

namespace verbena::simulation_test {

struct Scenario {
  uint64_t seed = 0;
  bench::Point point;
  uint64_t requests = 0;  // of each requesting thread, in each phase

  sim::FaultSchedule faults = {};

  bool must_finish() const { return faults.is_survivable(); }
};

// What the seed says.
Scenario draw(uint64_t seed);
// The same cluster and faults over queue pairs without reliability, where packets are always lost.
Scenario draw_unreliable(uint64_t seed);
// What a person needs to see of it.
std::string describe(const Scenario& scenario);

struct Outcome {
  Status broken;  // which promise was; ok if none
  Status run;     // what the coordinator saw
  uint64_t requests = 0;
  uint64_t digest = 0;  // of all completions and their times
  uint64_t virtual_ns = 0;
};
Outcome carry_out(const Scenario& scenario);

}  // namespace verbena::simulation_test
