#include "src/bench/result/point_result.h"

#include <algorithm>

#include "src/bench/experiment/workload.h"

namespace verbena::bench {

Summary PointResult::over_runs(double RunResult::*value) const {
  std::vector<double> values;
  for (const RunResult& run : runs) values.push_back(run.*value);
  return summarize(values);
}

std::optional<Band> PointResult::over_variants(double RunResult::*value) const {
  if (variants < 2 || runs.size() < variants) return std::nullopt;
  std::vector<double> medians;
  for (size_t variant = 0; variant < variants; ++variant) {
    std::vector<double> values;
    for (size_t run = variant; run < runs.size(); run += variants) {
      values.push_back(runs[run].*value);
    }
    medians.push_back(median(values));
  }
  const auto [least, most] = std::minmax_element(medians.begin(), medians.end());
  return Band{.least = *least, .most = *most};
}

std::optional<double> PointResult::offered_rate_per_s() const {
  if (!measured() || point.arrival_rate_per_s == 0) return std::nullopt;
  return over_runs(&RunResult::offered_rate_per_s).median;
}

bool PointResult::saturated() const {
  constexpr double kAnsweredShare = 0.95;
  const std::optional<double> offered = offered_rate_per_s();
  return offered && rate_per_s().median < kAnsweredShare * *offered;
}

double PointResult::total_bandwidth_bytes_per_s() const {
  return rate_per_s().median * static_cast<double>(point.workload->operation_bytes(point).total);
}

double PointResult::value_bandwidth_bytes_per_s() const {
  return rate_per_s().median * static_cast<double>(point.workload->operation_bytes(point).value);
}

std::optional<double> PointResult::value_bandwidth_per_node_bytes_per_s() const {
  if (point.topology != Topology::kAllToAll) return std::nullopt;
  return value_bandwidth_bytes_per_s() / point.nodes;
}

std::optional<double> PointResult::metric(size_t index) const {
  std::vector<double> values;
  for (const RunResult& run : runs) {
    if (index < run.metrics.size() && run.metrics[index]) values.push_back(*run.metrics[index]);
  }
  if (values.empty()) return std::nullopt;
  return median(values);
}

std::optional<KindResult> PointResult::kind(size_t index) const {
  const auto over_runs = [&](auto value) {
    std::vector<double> values;
    for (const RunResult& run : runs) {
      if (index < run.kinds.size() && run.kinds[index]) values.push_back(value(*run.kinds[index]));
    }
    return values;
  };
  const std::vector<double> rates = over_runs([](const KindResult& one) { return one.rate_per_s; });
  if (rates.empty()) return std::nullopt;
  KindResult result;
  for (const RunResult& run : runs) {
    if (index < run.kinds.size() && run.kinds[index]) result.requests += run.kinds[index]->requests;
  }
  result.rate_per_s = median(rates);
  result.p50_ns = median(over_runs([](const KindResult& one) { return one.p50_ns; }));
  result.p99_ns = median(over_runs([](const KindResult& one) { return one.p99_ns; }));
  result.p999_ns = median(over_runs([](const KindResult& one) { return one.p999_ns; }));
  return result;
}

uint64_t PointResult::requests() const {
  uint64_t sum = 0;
  for (const RunResult& run : runs) sum += run.requests;
  return sum;
}

std::optional<CpuCost> PointResult::cost(std::optional<CpuCost> RunResult::*side) const {
  std::vector<double> cycles;
  std::vector<double> instructions;
  for (const RunResult& run : runs) {
    if (!(run.*side)) continue;
    cycles.push_back((run.*side)->cycles);
    if ((run.*side)->instructions) instructions.push_back(*(run.*side)->instructions);
  }
  if (cycles.empty()) return std::nullopt;
  CpuCost cost{.cycles = median(cycles)};
  if (!instructions.empty()) cost.instructions = median(instructions);
  return cost;
}

}  // namespace verbena::bench
