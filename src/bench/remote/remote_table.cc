#include "src/bench/remote/remote_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/bench/experiment/axis.h"
#include "src/bench/experiment/size_list.h"
#include "src/bench/remote/remote_workload.h"
#include "src/bench/result/result_texts.h"
#include "src/bench/result/text_table.h"

namespace verbena::bench {

namespace {

bool is_size(const Axis& axis) {
  return axis.name == "size" || axis.name == "region" || axis.name == "block";
}

// What has a column: the operation, its version, the threads, and each axis on which points differ
// from what is usual.
std::vector<const Axis*> shown_axes(const std::vector<PointResult>& results) {
  const Workload& workload = remote_workload();
  const Point usual = workload.point();
  std::vector<const Axis*> shown;
  for (const Axis& axis : workload.traits().axes) {
    const bool always =
        axis.name == "operation" || axis.name == "version" || axis.name == "threads";
    const bool differs = std::any_of(results.begin(), results.end(), [&](const PointResult& one) {
      return axis.get(one.point) != axis.get(usual);
    });
    if (always || differs) shown.push_back(&axis);
  }
  return shown;
}

std::string metric_text(const PointResult& result, RemoteMetric metric) {
  const std::optional<double> value = result.metric(metric);
  return value ? fmt::format("{:.3g}", *value) : "-";
}

}  // namespace

std::string remote_table(const std::vector<PointResult>& results) {
  const std::vector<const Axis*> shown = shown_axes(results);
  std::vector<std::vector<std::string>> rows(1);
  for (const Axis* axis : shown) rows.front().emplace_back(axis->name);
  for (const char* name :
       {"median", "p99", "rate", "round trips", "attempts", "CPU", "CPU other", "runs"}) {
    rows.front().emplace_back(name);
  }
  const char* unit = "cycles";
  for (const PointResult& result : results) {
    std::vector<std::string> row;
    for (const Axis* axis : shown) {
      const uint64_t value = axis->get(result.point);
      row.push_back(is_size(*axis) ? size_text(value) : axis->text(value));
    }
    if (result.errors > 0) {
      row.push_back(fmt::format("FAILED: {}", result.error));
    } else {
      const std::optional<CpuCost> cost = result.requester_cost();
      if (cost && cost->instructions) unit = "instructions";
      row.insert(
          row.end(),
          {time_text(result.p50_ns().median), time_text(result.p99_ns().median),
           rate_text(result.rate_per_s().median), metric_text(result, kRoundTripsPerOperation),
           metric_text(result, kAttemptsPerAcquisition), cost_text(cost),
           cost_text(result.responder_cost()), fmt::format("{}", result.runs.size())});
    }
    rows.push_back(std::move(row));
  }
  return text_table(rows, shown.size()) +
         fmt::format(
             "latency and rate: of operations; of a lock, to take it and to give it back; "
             "round trips: per operation;\nattempts: to take the lock, per acquisition; "
             "CPU: {} per operation here and on the other side;\nnumbers are medians over "
             "the runs\n",
             unit) +
         simulation_text(results);
}

}  // namespace verbena::bench
