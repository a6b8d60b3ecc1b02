#include "src/bench/remote/remote_table.h"

#include <fmt/format.h>

#include <array>
#include <optional>
#include <string_view>

#include "src/bench/experiment/axis.h"
#include "src/bench/result/application_table.h"
#include "src/bench/result/result_texts.h"
#include "src/bench/result/text_table.h"

namespace verbena::bench {

std::string remote_table(const std::vector<PointResult>& results) {
  constexpr std::array<std::string_view, 3> kAlways = {"operation", "version", "threads"};
  const std::vector<const Axis*> shown = shown_axes(results, kAlways);
  std::vector<std::vector<std::string>> rows(1);
  for (const Axis* axis : shown) rows.front().emplace_back(axis->name);
  for (const char* name :
       {"median", "p99", "rate", "round trips", "attempts", "CPU", "CPU other", "runs"}) {
    rows.front().emplace_back(name);
  }
  const char* unit = "cycles";
  for (const PointResult& result : results) {
    std::vector<std::string> row;
    for (const Axis* axis : shown) row.push_back(axis_text(*axis, result.point));
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
