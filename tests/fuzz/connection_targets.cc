// What another process's connection manager of soft0 sends.
#include <netinet/in.h>

#include <cstring>

#include "src/device/soft/cm/endpoint.h"
#include "src/device/soft/cm/wire.h"
#include "tests/fuzz/targets.h"

namespace verbena::fuzz {
namespace {

namespace cm = soft::cm;

bool has_addresses(const cm::Message& message) {
  const auto source =
      cm::read_endpoint(message.source_address.data(), message.source_address.size());
  const auto target =
      cm::read_endpoint(message.target_address.data(), message.target_address.size());
  return source && target && source->family == target->family;
}

Status run_connection_message(std::span<const std::byte> input) {
  cm::Message message;
  if (!cm::read_message(input, message)) return {StatusCode::kInvalidArgument, "no message"};
  require(
      input.size() == sizeof(message) && std::memcmp(&message, input.data(), sizeof(message)) == 0,
      "a message is what was sent");
  require(message.magic == cm::kMessageMagic && message.source_id != 0, "its sender is known");
  require(message.queue_pair_number < 1u << 24 && message.packet_number < 1u << 24,
          "numbers have 24 bits");
  require(message.retry_count < 8 && message.rnr_retry_count < 8, "counts of retries have 3 bits");
  const auto type = static_cast<uint16_t>(message.type);
  require(type >= 1 && type <= 8, "its type is one of them");
  if (message.type == cm::MessageType::kConnectRequest ||
      message.type == cm::MessageType::kDatagramRequest) {
    require(has_addresses(message), "a request has addresses of one family");
  }
  return {};
}

Bytes as_packet(const cm::Message& message) {
  const auto bytes = std::as_bytes(std::span(&message, 1));
  return {bytes.begin(), bytes.end()};
}

// A message of each type, requests of both families.
std::vector<Bytes> connection_message_seeds() {
  std::vector<Bytes> seeds;
  for (uint16_t type = 1; type <= 8; ++type) {
    cm::Message message{};
    message.magic = cm::kMessageMagic;
    message.type = static_cast<cm::MessageType>(type);
    message.port_space = 0x0106;
    message.source_id = 7;
    message.target_id = 9;
    message.queue_pair_number = 0x4001;
    message.retry_count = 7;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(4711);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    std::memcpy(message.source_address.data(), &address, sizeof(address));
    std::memcpy(message.target_address.data(), &address, sizeof(address));
    seeds.push_back(as_packet(message));
    sockaddr_in6 longer{};
    longer.sin6_family = AF_INET6;
    longer.sin6_addr = in6addr_loopback;
    std::memcpy(message.source_address.data(), &longer, sizeof(longer));
    std::memcpy(message.target_address.data(), &longer, sizeof(longer));
    seeds.push_back(as_packet(message));
  }
  return seeds;
}

}  // namespace

std::vector<FuzzTarget> connection_targets() {
  return {{"connection_message", run_connection_message, connection_message_seeds}};
}

}  // namespace verbena::fuzz
