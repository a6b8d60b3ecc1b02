#include "src/bench/message/message_table.h"

#include <fmt/format.h>

#include <array>
#include <optional>
#include <string_view>

#include "src/bench/experiment/size_list.h"
#include "src/bench/message/message_settings.h"
#include "src/bench/result/application_table.h"
#include "src/bench/result/text_table.h"

namespace verbena::bench {

namespace {

// Of a ping-pong half; of a collective the mean over all ranks, without the barrier behind it.
std::string one_way_text(const PointResult& result) {
  const MessageTest test = message_settings(result.point).test;
  if (test == MessageTest::kLatency) return time_text(result.p50_ns().median / 2);
  if (is_one_sided(test)) return time_text(result.p50_ns().median);
  const std::optional<double> collective = result.metric(kMeanCollectiveNs);
  return is_collective(test) && collective ? time_text(*collective) : "-";
}
std::string message_rate_text(const PointResult& result) {
  const MessageSettings& settings = message_settings(result.point);
  if (!has_window(settings.test)) return "-";
  const uint32_t ways = settings.test == MessageTest::kBidirectional ? 2 : 1;
  return rate_text(result.rate_per_s().median * settings.window * ways);
}
std::string message_bandwidth_text(const PointResult& result) {
  if (!has_window(message_settings(result.point).test)) return "-";
  return bandwidth_text(result.value_bandwidth_bytes_per_s());
}
std::string ring_share_text(const PointResult& result) {
  const std::optional<double> share = result.metric(kRingShare);
  return share ? fmt::format("{:.0f} %", 100 * *share) : "-";
}
std::string pinned_text(const PointResult& result) {
  const std::optional<double> bytes = result.metric(kPinnedBytesOfMeasurer);
  return bytes ? size_text(static_cast<uint64_t>(*bytes) & ~uint64_t{1023}) : "-";
}

}  // namespace

std::string message_table(const std::vector<PointResult>& results) {
  constexpr std::array<std::string_view, 4> kAlways = {"peers", "size", "test", "channel"};
  constexpr std::array kColumns = {
      MetricColumn{.name = "one way", .text = one_way_text},
      MetricColumn{.name = "messages", .text = message_rate_text},
      MetricColumn{.name = "bandwidth", .text = message_bandwidth_text},
      MetricColumn{.name = "by ring", .text = ring_share_text},
      MetricColumn{.name = "credits", .metric = kCreditMessagesPerOperation},
      MetricColumn{.name = "uncopied", .metric = kUncopiedPerOperation},
      MetricColumn{.name = "pinned", .text = pinned_text}};
  return application_table(
      results, kAlways, kColumns,
      "one way: half of a ping-pong, a put or get\nand the messages behind it, of a collective the "
      "mean over all ranks without the barrier behind it,\nand of a replay what a rank spends in "
      "its "
      "calls; messages and bandwidth: of windows; by ring: the share\nof messages that went by "
      "WRITE; "
      "credits: messages that return nothing else, per operation; uncopied: short\nmessages from "
      "their buffers, and gets into them, without a copy, per operation; pinned: registered "
      "memory\nof rank 0",
      "without waiting, in sending, receiving and progress");
}

}  // namespace verbena::bench
