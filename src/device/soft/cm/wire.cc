#include "src/device/soft/cm/wire.h"

#include <cstring>

#include "src/device/soft/cm/endpoint.h"

namespace verbena::soft::cm {
namespace {

constexpr uint32_t kQueuePairNumberLimit = 1u << 24;
constexpr uint8_t kMaxRetryCount = 7;  // three bits in the packets of InfiniBand

}  // namespace

bool read_message(std::span<const std::byte> packet, Message& message) {
  if (packet.size() != sizeof(message)) return false;
  std::memcpy(&message, packet.data(), sizeof(message));
  if (message.magic != kMessageMagic || message.source_id == 0) return false;
  if (message.queue_pair_number >= kQueuePairNumberLimit ||
      message.packet_number >= kQueuePairNumberLimit) {
    return false;
  }
  if (message.retry_count > kMaxRetryCount || message.rnr_retry_count > kMaxRetryCount) {
    return false;
  }
  switch (message.type) {
    case MessageType::kConnectRequest:
    case MessageType::kDatagramRequest: {
      const auto source =
          read_endpoint(message.source_address.data(), message.source_address.size());
      const auto target =
          read_endpoint(message.target_address.data(), message.target_address.size());
      return source && target && source->family == target->family;
    }
    case MessageType::kRequestReceived:
    case MessageType::kConnectReply:
    case MessageType::kReadyToUse:
    case MessageType::kReject:
    case MessageType::kDisconnect:
    case MessageType::kDatagramReply:
      return true;
  }
  return false;
}

}  // namespace verbena::soft::cm
