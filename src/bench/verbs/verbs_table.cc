#include "src/bench/verbs/verbs_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/bench/experiment/axis.h"
#include "src/bench/experiment/size_list.h"
#include "src/bench/result/result_texts.h"
#include "src/bench/result/text_table.h"
#include "src/bench/verbs/verbs_workload.h"

namespace verbena::bench {

namespace {

// What has a column: the operation, and each axis on which points differ from what is usual.
std::vector<const Axis*> shown_axes(const std::vector<PointResult>& results) {
  const Workload& workload = verbs_workload();
  const Point usual = workload.point();
  std::vector<const Axis*> shown;
  for (const Axis& axis : workload.traits().axes) {
    const bool always = axis.name == "operation" || axis.name == "size" || axis.name == "pending";
    const bool differs = std::any_of(results.begin(), results.end(), [&](const PointResult& one) {
      return axis.get(one.point) != axis.get(usual);
    });
    if (always || differs) shown.push_back(&axis);
  }
  return shown;
}

std::string cell_text(const Axis& axis, const Point& point) {
  const bool bytes = axis.name == "size" || axis.name == "region";
  return bytes ? size_text(axis.get(point)) : axis.text(axis.get(point));
}

}  // namespace

std::string verbs_table(const std::vector<PointResult>& results) {
  const std::vector<const Axis*> shown = shown_axes(results);
  std::vector<std::vector<std::string>> rows(1);
  for (const Axis* axis : shown) rows.front().emplace_back(axis->name);
  for (const char* name : {"median", "p99", "rate", "bandwidth", "CPU", "CPU other", "runs"}) {
    rows.front().emplace_back(name);
  }
  const bool lossy = std::any_of(results.begin(), results.end(),
                                 [](const PointResult& one) { return one.metric(0).has_value(); });
  if (lossy) rows.front().emplace_back("arrived");
  const char* unit = "cycles";
  for (const PointResult& result : results) {
    std::vector<std::string> row;
    for (const Axis* axis : shown) row.push_back(cell_text(*axis, result.point));
    if (result.errors > 0) {
      row.push_back(fmt::format("FAILED: {}", result.error));
    } else {
      const std::optional<CpuCost> cost = result.requester_cost();
      if (cost && cost->instructions) unit = "instructions";
      row.insert(row.end(),
                 {time_text(result.p50_ns().median), time_text(result.p99_ns().median),
                  rate_text(result.rate_per_s().median),
                  bandwidth_text(result.value_bandwidth_bytes_per_s()), cost_text(cost),
                  cost_text(result.responder_cost()), fmt::format("{}", result.runs.size())});
      if (lossy) {
        const std::optional<double> arrived = result.metric(0);
        row.push_back(arrived ? fmt::format("{:.3g} %", *arrived * 100) : "-");
      }
    }
    rows.push_back(std::move(row));
  }
  return text_table(rows, shown.size()) +
         fmt::format(
             "latency: from before an operation's CPU work and post until its completion is "
             "taken, waiting behind other\npending ones included; rate: operations, each of "
             "all its entries; CPU: {} per operation here and on the\nother side; numbers "
             "are medians over the runs\n",
             unit) +
         (lossy ? "arrived: SENDs that found a receive, of those that were posted\n" : "") +
         simulation_text(results);
}

}  // namespace verbena::bench
