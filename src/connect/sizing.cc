#include "src/connect/sizing.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace verbena::connect {
namespace {

// Shallow queues of slow devices stall; deeper ones than this gain nothing.
constexpr uint32_t kMinSendDepth = 64;

}  // namespace

Result<channel::SendQueueSizes> size_send_queue(const DeviceInfo& device, uint32_t pending,
                                                uint32_t signal_interval, uint32_t post_batch,
                                                uint32_t requests_per_message) {
  const uint64_t interval = signal_interval == 0 ? 1 : signal_interval;
  const uint64_t at_once = uint64_t{pending} * requests_per_message;
  const uint64_t least = std::max<uint64_t>(at_once + interval, post_batch);
  if (least > device.max_queue_pair_wrs) {
    return Status(
        StatusCode::kLimitExceeded,
        fmt::format("{} pending requests with every {}-th signaled need a send queue of {} "
                    "work requests, {} has {}; lower pending or signal_interval",
                    pending, interval, least, device.name, device.max_queue_pair_wrs));
  }
  const uint64_t comfortable = std::max({2 * at_once, least, uint64_t{kMinSendDepth}});
  const auto depth = static_cast<uint32_t>(
      std::min<uint64_t>(std::bit_ceil(comfortable), device.max_queue_pair_wrs));
  channel::SendQueueSizes sizes;
  sizes.depth_wrs = depth;
  sizes.signal_interval = signal_interval == 0
                              ? std::clamp(depth / 4, 1u, depth - static_cast<uint32_t>(at_once))
                              : signal_interval;
  sizes.post_batch = post_batch;
  sizes.requests_per_message = requests_per_message;
  return sizes;
}

Result<channel::ReceivePoolSizes> size_receive_queue(uint32_t device_limit_wrs, const char* queue,
                                                     uint32_t messages, uint32_t depth,
                                                     uint32_t buffer_bytes) {
  using channel::ReceivePoolSizes;
  ReceivePoolSizes sizes = depth == 0 ? ReceivePoolSizes::for_messages(messages, buffer_bytes)
                                      : ReceivePoolSizes::of_depth(depth, messages);
  if (depth == 0 && sizes.receives > device_limit_wrs) {
    sizes = ReceivePoolSizes::for_messages(messages, ReceivePoolSizes::kSmallBufferBytes + 1);
  }
  if (sizes.receives > device_limit_wrs) {
    return Status(StatusCode::kLimitExceeded,
                  fmt::format("{} messages at once need a {} of {} receives, the device has {}; "
                              "lower pending or max_connections, or set receive_depth",
                              messages, queue, sizes.receives, device_limit_wrs));
  }
  return sizes;
}

uint32_t inline_limit_bytes(const DeviceInfo& device, uint32_t wanted_bytes) {
  return std::min(wanted_bytes, device.max_inline_bytes);
}

}  // namespace verbena::connect
