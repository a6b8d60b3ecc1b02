#include "src/rpc/cost_estimate.h"

#include <fmt/format.h>

namespace verbena::rpc {

using channel::SideCost;

std::string to_string(const CostEstimate& estimate) {
  struct Line {
    const char* name;
    double SideCost::*count;
  };
  static constexpr Line kLines[] = {
      {"work requests posted", &SideCost::work_requests},
      {"send doorbells", &SideCost::doorbells},
      {"receives posted", &SideCost::receives},
      {"receive doorbells", &SideCost::receive_doorbells},
      {"completions taken", &SideCost::completions},
      {"cache lines per look", &SideCost::polled_lines},
      {"bytes cleared", &SideCost::cleared_bytes},
      {"bytes copied by the CPU", &SideCost::copied_bytes},
      {"reads by the device", &SideCost::device_reads},
  };
  std::string table =
      fmt::format("{:<24} {:>10} {:>10}\n", "per request", "requester", "responder");
  for (const Line& line : kLines) {
    table += fmt::format("{:<24} {:>10.4g} {:>10.4g}\n", line.name, estimate.requester.*line.count,
                         estimate.responder.*line.count);
  }
  table += fmt::format("on the wire: {:.4g} messages, {:.0f} bytes with marks and padding\n",
                       estimate.wire_messages, estimate.wire_bytes);
  return table;
}

}  // namespace verbena::rpc
