#include "src/bench/join/join_table.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

#include "src/bench/experiment/workload.h"
#include "src/bench/join/join_settings.h"
#include "src/bench/result/application_table.h"
#include "src/bench/result/result_texts.h"
#include "src/bench/result/text_table.h"

namespace verbena::bench {

namespace {

constexpr std::array<std::string_view, 7> kJoinAxes = {"nodes", "threads",  "tuples", "tuple-size",
                                                       "batch", "exchange", "method"};

// Of the whole join: from its begin to the end of the last executor.
std::string join_time_text(const PointResult& result) {
  const double tuples = 2 * static_cast<double>(join_settings(result.point).tuples);
  return time_text(tuples / result.rate_per_s().median * 1e9);
}

}  // namespace

std::string join_table(const std::vector<PointResult>& results) {
  const std::vector<const Axis*> axes = shown_axes(results, kJoinAxes);
  std::vector<std::vector<std::string>> rows(1);
  for (const Axis* axis : axes) rows.front().emplace_back(axis->name);
  rows.front().insert(rows.front().end(),
                      {"time", "tuples/s", "shuffle", "partition", "probe", "cycles", "runs"});
  for (const PointResult& result : results) {
    std::vector<std::string>& row = rows.emplace_back();
    for (const Axis* axis : axes) row.push_back(axis_text(*axis, result.point));
    if (result.errors > 0) {
      row.push_back(fmt::format("FAILED: {}", result.error));
      continue;
    }
    row.insert(row.end(),
               {join_time_text(result), rate_text(result.rate_per_s().median),
                metric_text(result, kShuffleNsPerTuple), metric_text(result, kPartitionNsPerTuple),
                metric_text(result, kProbeNsPerTuple), metric_text(result, kCyclesPerTuple),
                fmt::format("{}", result.runs.size())});
  }
  return text_table(rows, axes.size()) +
         "time: of one join of so many tuples with as many, and tuples/s of both; shuffle, "
         "partition and probe (with\nbuilding): ns of an executor, and cycles, idle ones too: per "
         "tuple; numbers are medians over the runs\n" +
         simulation_text(results);
}

}  // namespace verbena::bench
