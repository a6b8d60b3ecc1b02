#include "src/bench/results_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/bench/size_list.h"
#include "src/bench/text_table.h"

namespace verbena::bench {

namespace {

std::string cost_text(const std::optional<CpuCost>& cost) {
  if (!cost) return "-";
  return cost->per_message == 0 ? "0" : count_text(cost->per_message);
}

std::string spread_text(const Summary& summary) {
  return fmt::format("{:+.0f}/{:+.0f} %", (summary.min / summary.median - 1) * 100,
                     (summary.max / summary.median - 1) * 100);
}

bool same_sizes(const Point& a, const Point& b) {
  return a.request_bytes == b.request_bytes && a.response_bytes == b.response_bytes &&
         a.pending == b.pending;
}

}  // namespace

std::string results_table(const std::vector<PointResult>& results) {
  const bool verified = std::any_of(results.begin(), results.end(),
                                    [](const PointResult& result) { return result.verify; });
  std::vector<std::vector<std::string>> rows = {
      {"protocol", "mark", "request", "response", "pending", "median", "p99", "p99.9", "rate",
       "bandwidth", "CPU req.", "CPU resp.", "runs", "spread"}};
  if (verified) rows.front().push_back("verified");
  const char* unit = "cycles";
  const Point* previous = nullptr;
  for (const PointResult& result : results) {
    const Point& point = result.point;
    // What is compared stands together.
    if (previous != nullptr && !same_sizes(*previous, point)) rows.emplace_back();
    previous = &point;
    std::vector<std::string> row = {protocol_name(point.protocol),
                                    uses_mark_layout(point.protocol) ? layout_text(point) : "-",
                                    size_text(point.request_bytes), size_text(point.response_bytes),
                                    fmt::format("{}", point.pending)};
    if (result.measured()) {
      const std::optional<CpuCost> cost = result.requester_cost();
      if (cost && cost->unit == CpuUnit::kInstructions) unit = "instructions";
      const Summary rate = result.rate_per_s();
      row.insert(row.end(), {time_text(result.p50_ns().median), time_text(result.p99_ns().median),
                             time_text(result.p999_ns().median), rate_text(rate.median),
                             bandwidth_text(result.bandwidth_bytes_per_s()),
                             cost_text(result.requester_cost()), cost_text(result.responder_cost()),
                             fmt::format("{}", result.runs.size()), spread_text(rate)});
      if (verified) row.push_back(result.verified() ? "yes" : "NO");
    }
    const bool failed = result.errors > 0;
    if (!failed || result.measured()) rows.push_back(row);
    if (failed) {
      row.resize(5);
      row.push_back(fmt::format("FAILED: {}", result.error));
      rows.push_back(std::move(row));
    }
  }
  return text_table(rows, 2) +
         fmt::format(
             "latency: post to response of one request, waiting behind other pending ones "
             "included; "
             "CPU: {} per message\nat requester and responder, polls that found nothing left out; "
             "numbers are medians over the runs, spread is that of the rate\n",
             unit);
}

}  // namespace verbena::bench
