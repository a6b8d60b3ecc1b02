// What a point about requests and responses has beside Point's own members.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "src/bench/experiment/point.h"
#include "verbena/rpc.h"

namespace verbena::bench {

// Of Report::counters. The last two are of transports that lose messages: messages of either side
// that were sent again, and requests that were answered.
enum Counter : size_t { kPolls, kEmptyPolls, kResent, kAnswered };

struct RequestResponseSettings {
  Protocol protocol = Protocol::kWriteWrite;
  MarkLayout layout = MarkLayout::kLastBit;  // means something only where uses_mark_layout()
  uint32_t request_bytes = 64;
  uint32_t response_bytes = 64;
  ReceiveQueues receive_queues = ReceiveQueues::kShared;
  uint32_t poll_batch = 0;  // 0: all that have come
  uint32_t receive_slack = 1;
  Transport transport = Transport::kRc;
};

inline const RequestResponseSettings& request_response_settings(const Point& point) {
  return settings_of<RequestResponseSettings>(point);
}
inline RequestResponseSettings& request_response_settings(Point& point) {
  return settings_of<RequestResponseSettings>(point);
}

// "send/send", "send/send over ud".
inline std::string design_text(const RequestResponseSettings& settings) {
  const std::string protocol = protocol_name(settings.protocol);
  return settings.transport == Transport::kRc
             ? protocol
             : protocol + " over " + transport_name(settings.transport);
}

// "last-bit" and so on; "none" where the protocol has no mark.
inline const char* layout_text(const RequestResponseSettings& settings) {
  return uses_mark_layout(settings.protocol) ? mark_layout_name(settings.layout) : "none";
}

}  // namespace verbena::bench
