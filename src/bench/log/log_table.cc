#include "src/bench/log/log_table.h"

#include <array>
#include <string_view>

#include "src/bench/log/log_settings.h"
#include "src/bench/result/application_table.h"
#include "src/bench/result/text_table.h"

namespace verbena::bench {

namespace {

std::string entries_text(const PointResult& result) {
  return rate_text(result.rate_per_s().median * log_settings(result.point).batch);
}
std::string bandwidth_cell(const PointResult& result) {
  return bandwidth_text(result.value_bandwidth_bytes_per_s());
}

}  // namespace

std::string log_table(const std::vector<PointResult>& results) {
  constexpr std::array<std::string_view, 5> kAlways = {"nodes", "threads", "entry-size", "batch",
                                                       "method"};
  constexpr std::array kColumns = {MetricColumn{.name = "entries", .text = entries_text},
                                   MetricColumn{.name = "bandwidth", .text = bandwidth_cell},
                                   MetricColumn{.name = "read", .metric = kReadPerEntry},
                                   MetricColumn{.name = "full", .metric = kFullWaitsPerBatch},
                                   MetricColumn{.name = "skipped", .metric = kSkippedPerBatch}};
  return application_table(
      results, kAlways, kColumns,
      "entries and bandwidth: appended;\nread: by all readers, per appended entry; full and "
      "skipped: waits for room and batches that readers gave up, per batch");
}

}  // namespace verbena::bench
