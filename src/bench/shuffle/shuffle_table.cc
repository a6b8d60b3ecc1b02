#include "src/bench/shuffle/shuffle_table.h"

#include <array>
#include <string_view>

#include "src/bench/result/application_table.h"
#include "src/bench/result/text_table.h"
#include "src/bench/shuffle/shuffle_settings.h"

namespace verbena::bench {

namespace {

std::string records_text(const PointResult& result) {
  return rate_text(result.rate_per_s().median * shuffle_settings(result.point).chunk);
}
std::string bytes_text(const PointResult& result) {
  return bandwidth_text(result.value_bandwidth_bytes_per_s());
}

}  // namespace

std::string shuffle_table(const std::vector<PointResult>& results) {
  constexpr std::array<std::string_view, 6> kAlways = {"nodes",       "threads", "receivers",
                                                       "record-size", "batch",   "method"};
  constexpr std::array kColumns = {
      MetricColumn{.name = "records", .text = records_text},
      MetricColumn{.name = "bandwidth", .text = bytes_text},
      MetricColumn{.name = "WRITEs", .metric = kWritesPerRecord},
      MetricColumn{.name = "refused", .metric = kRefusalsPerRecord},
      MetricColumn{.name = "send", .metric = kSenderCyclesPerRecord},
      MetricColumn{.name = "receive", .metric = kReceiverCyclesPerRecord}};
  return application_table(
      results, kAlways, kColumns,
      "records and bandwidth: sent by all senders;\nWRITEs, and refusals for want of space or of "
      "pending WRITEs: per record; send and receive: cycles of a sender and of\na receiver per "
      "record, without idle polls",
      "in polls that moved anything");
}

}  // namespace verbena::bench
