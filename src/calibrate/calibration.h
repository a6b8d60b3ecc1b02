// Measures a device of this machine and fits a profile to it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "src/calibrate/fit.h"
#include "src/calibrate/prediction.h"
#include "verbena/status.h"

namespace verbena::calibrate {

struct CalibrationOptions {
  std::string device;
  uint32_t rounds = 5;  // each measures everything once, so that all have the machine's good times
  uint64_t duration_ns = 50'000'000;  // of each point
  bool check = false;                 // measures what is predicted, too
};

struct Calibration {
  std::vector<Measured> measured;
  Fitted fitted;
  std::vector<Prediction> predictions;  // what was measured of them; empty without a check
  double cpu_share = 1;                 // HostProbes::cpu_share, the least of all rounds
};

// How many steps it has, for `step`, which is told what begins.
Result<uint64_t> calibration_steps(const CalibrationOptions& options);
using BeginStep = std::function<void(const std::string& what)>;

// kUnsupported: no device of this kind can be calibrated; else what went wrong in a measurement,
// also where the user interrupted it (bench/run/interrupt.h).
Result<Calibration> calibrate(const CalibrationOptions& options, const BeginStep& step);
// Fills in what the fitted profile predicts, by simulations. An error also where the user
// interrupted it.
Status predict(const BeginStep& step, Calibration* calibration);

}  // namespace verbena::calibrate
