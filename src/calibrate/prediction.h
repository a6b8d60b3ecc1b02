// What the calibrated profile says of points that it was not calibrated by, beside what they do.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/bench/experiment/point.h"
#include "src/bench/result/statistics.h"
#include "verbena/status.h"

namespace verbena::calibrate {

struct PredictedPoint {
  // The same for points that differ in their protocol alone, which are compared with each other.
  std::string setting;
  bench::Point point;
};

// Every protocol in every topology, with few and many pending requests, and with other sizes.
Result<std::vector<PredictedPoint>> predicted_points();

struct Prediction {
  std::string setting;
  std::string protocol;
  bench::Point point;
  bench::Summary measured_per_s;
  double predicted_per_s = 0;

  // Of what was measured; above 0: too much was predicted.
  double error() const { return predicted_per_s / measured_per_s.median - 1; }
};

struct PredictionSummary {
  size_t points = 0;
  double median_error = 0;  // of their amounts
  bool has_spread = false;  // there were several rounds
  // Pairs of protocols in one setting of which one was faster in all rounds than the other in any;
  // none without a spread.
  size_t pairs = 0;
  size_t pairs_in_order = 0;
};

PredictionSummary summarize(std::span<const Prediction> predictions);

}  // namespace verbena::calibrate
