#include "src/bench/point_result.h"

namespace verbena::bench {

Summary PointResult::over_runs(double RunResult::*value) const {
  std::vector<double> values;
  for (const RunResult& run : runs) values.push_back(run.*value);
  return summarize(values);
}

double PointResult::bandwidth_bytes_per_s() const {
  const uint64_t request_bytes = point.protocol == Protocol::kRead ? 0 : point.request_bytes;
  return rate_per_s().median * static_cast<double>(request_bytes + point.response_bytes);
}

double PointResult::value_bandwidth_bytes_per_s() const {
  return rate_per_s().median * static_cast<double>(point.response_bytes);
}

std::optional<double> PointResult::empty_look_share() const {
  std::vector<double> values;
  for (const RunResult& run : runs) {
    if (run.empty_look_share) values.push_back(*run.empty_look_share);
  }
  if (values.empty()) return std::nullopt;
  return median(values);
}

uint64_t PointResult::requests() const {
  uint64_t sum = 0;
  for (const RunResult& run : runs) sum += run.requests;
  return sum;
}

std::optional<CpuCost> PointResult::cost(std::optional<CpuCost> RunResult::*side) const {
  std::vector<double> values;
  CpuUnit unit = CpuUnit::kCycles;
  for (const RunResult& run : runs) {
    if (!(run.*side)) continue;
    unit = (run.*side)->unit;
    values.push_back((run.*side)->per_message);
  }
  if (values.empty()) return std::nullopt;
  return CpuCost{unit, median(values)};
}

}  // namespace verbena::bench
