#include "src/calibrate/prediction.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/bench/request_response/request_response_workload.h"
#include "src/calibrate/observation.h"

namespace verbena::calibrate {

namespace {

struct Setting {
  std::string_view topology;
  std::vector<AxisValue> axes;
};

constexpr std::string_view kProtocols[] = {"send/send", "send/write", "write/send", "write/write",
                                           "read"};

const std::vector<Setting>& settings() {
  static const std::vector<Setting> all = {
      {"one-to-one", {{"pending", "4"}}},
      {"one-to-one", {{"pending", "64"}}},
      {"one-to-one", {{"pending", "4"}, {"request", "1024"}, {"response", "1024"}}},
      {"one-to-one", {{"pending", "4"}, {"request", "64"}, {"response", "16384"}}},
      {"N-to-1", {{"nodes", "2"}, {"pending", "1"}}},
      {"N-to-1", {{"nodes", "2"}, {"pending", "16"}}},
      {"N-to-1", {{"nodes", "4"}, {"pending", "1"}}},
      {"N-to-1", {{"nodes", "4"}, {"pending", "16"}}},
      {"N-to-1", {{"nodes", "4"}, {"pending", "16"}, {"response", "4096"}}},
      {"1:M", {{"responders", "2"}, {"pending", "1"}}},
      {"1:M", {{"responders", "4"}, {"pending", "16"}}},
      {"M:M", {{"nodes", "2"}, {"pending", "1"}}},
      {"M:M", {{"nodes", "3"}, {"pending", "1"}}},
      {"M:M", {{"nodes", "3"}, {"pending", "16"}}},
  };
  return all;
}

std::string text_of(const Setting& setting) {
  std::string text(setting.topology);
  for (const auto& [axis, value] : setting.axes) text += fmt::format(", {} {}", axis, value);
  return text;
}

}  // namespace

Result<std::vector<PredictedPoint>> predicted_points() {
  std::vector<PredictedPoint> points;
  for (const Setting& setting : settings()) {
    for (const std::string_view protocol : kProtocols) {
      std::vector<AxisValue> axes = setting.axes;
      axes.emplace_back("protocol", protocol);
      VERBENA_ASSIGN_OR_RETURN(bench::Point point, make_point(bench::request_response_workload(),
                                                              setting.topology, axes));
      points.push_back({text_of(setting), std::move(point)});
    }
  }
  return points;
}

PredictionSummary summarize(std::span<const Prediction> predictions) {
  PredictionSummary summary{.points = predictions.size()};
  if (predictions.empty()) return summary;
  summary.has_spread = std::all_of(predictions.begin(), predictions.end(),
                                   [](const auto& one) { return one.measured_per_s.has_spread(); });
  std::vector<double> errors;
  for (const Prediction& one : predictions) errors.push_back(std::abs(one.error()));
  summary.median_error = bench::median(errors);
  for (size_t i = 0; i < predictions.size(); ++i) {
    for (size_t j = 0; j < predictions.size(); ++j) {
      const Prediction& slow = predictions[i];
      const Prediction& fast = predictions[j];
      if (slow.setting != fast.setting) continue;
      if (!slow.measured_per_s.has_spread() || !fast.measured_per_s.has_spread()) continue;
      if (slow.measured_per_s.max >= fast.measured_per_s.min) continue;
      ++summary.pairs;
      if (slow.predicted_per_s < fast.predicted_per_s) ++summary.pairs_in_order;
    }
  }
  return summary;
}

}  // namespace verbena::calibrate
