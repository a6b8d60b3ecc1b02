#include "src/bench/result/application_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "src/bench/experiment/size_list.h"
#include "src/bench/experiment/workload.h"
#include "src/bench/result/result_texts.h"
#include "src/bench/result/text_table.h"

namespace verbena::bench {

namespace {

// Those that any point has.
std::vector<size_t> shown_kinds(const std::vector<PointResult>& results) {
  std::vector<size_t> shown;
  const WorkloadTraits& workload = results.front().point.workload->traits();
  for (size_t kind = 0; kind < workload.kinds.size(); ++kind) {
    const bool is_there = std::any_of(results.begin(), results.end(), [kind](const auto& result) {
      return result.kind(kind).has_value();
    });
    if (is_there) shown.push_back(kind);
  }
  return shown;
}

std::string kind_text(const PointResult& result, size_t kind) {
  const std::optional<KindResult> one = result.kind(kind);
  if (!one) return "-";
  return fmt::format("{} / {}", time_text(one->p50_ns), time_text(one->p99_ns));
}

}  // namespace

std::vector<const Axis*> shown_axes(const std::vector<PointResult>& results,
                                    std::span<const std::string_view> always) {
  const Workload& workload = *results.front().point.workload;
  const Point usual = workload.point();
  std::vector<const Axis*> shown;
  for (const Axis& axis : workload.traits().axes) {
    const bool named = std::find(always.begin(), always.end(), axis.name) != always.end();
    const bool differs = std::any_of(results.begin(), results.end(), [&](const PointResult& one) {
      return axis.applies(one.point) && axis.get(one.point) != axis.get(usual);
    });
    if (named || differs) shown.push_back(&axis);
  }
  return shown;
}

std::string axis_text(const Axis& axis, const Point& point) {
  const uint64_t value = axis.get(point);
  if (!axis.applies(point)) return "-";
  return axis.shape == "SIZES" ? size_text(value) : axis.text(value);
}

std::string metric_text(const PointResult& result, size_t metric) {
  const std::optional<double> value = result.metric(metric);
  return value ? fmt::format("{:.3g}", *value) : "-";
}

std::string application_table(const std::vector<PointResult>& results,
                              std::span<const std::string_view> always,
                              std::span<const MetricColumn> columns, std::string_view legend,
                              std::string_view other_side) {
  const std::vector<const Axis*> axes = shown_axes(results, always);
  const std::vector<size_t> kinds = shown_kinds(results);
  const WorkloadTraits& workload = results.front().point.workload->traits();
  std::vector<std::vector<std::string>> rows(1);
  std::vector<std::string>& heading = rows.front();
  for (const Axis* axis : axes) heading.emplace_back(axis->name);
  heading.insert(heading.end(), {"median", "p99", "rate"});
  // Of a single kind the columns before have it all.
  if (kinds.size() > 1) {
    for (const size_t kind : kinds) heading.emplace_back(workload.kinds[kind]);
  }
  for (const MetricColumn& column : columns) heading.emplace_back(column.name);
  heading.insert(heading.end(), {"CPU", "runs"});
  const char* unit = "cycles";
  for (const PointResult& result : results) {
    std::vector<std::string> row;
    for (const Axis* axis : axes) row.push_back(axis_text(*axis, result.point));
    if (result.errors > 0) {
      row.push_back(fmt::format("FAILED: {}", result.error));
      rows.push_back(std::move(row));
      continue;
    }
    const std::optional<CpuCost> cost = result.requester_cost();
    if (cost && cost->instructions) unit = "instructions";
    row.insert(row.end(), {time_text(result.p50_ns().median), time_text(result.p99_ns().median),
                           rate_text(result.rate_per_s().median)});
    if (kinds.size() > 1) {
      for (const size_t kind : kinds) row.push_back(kind_text(result, kind));
    }
    for (const MetricColumn& column : columns) {
      row.push_back(column.text != nullptr ? column.text(result)
                                           : metric_text(result, column.metric));
    }
    row.insert(row.end(), {cost_text(cost), fmt::format("{}", result.runs.size())});
    rows.push_back(std::move(row));
  }
  return text_table(rows, axes.size()) +
         fmt::format(
             "median, p99 and rate: of all operations{}; {};\nCPU: {} per operation here, "
             "{}; numbers are medians over the runs\n",
             kinds.size() > 1 ? ", and median / p99 of each kind" : "", legend, unit, other_side) +
         simulation_text(results);
}

}  // namespace verbena::bench
