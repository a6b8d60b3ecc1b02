#include "src/device/soft/cm/wire.h"

#include <gtest/gtest.h>
#include <netinet/in.h>

#include <cstring>
#include <vector>

namespace verbena::soft::cm {
namespace {

Message right_request() {
  Message message{};
  message.magic = kMessageMagic;
  message.type = MessageType::kConnectRequest;
  message.source_id = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  std::memcpy(message.source_address.data(), &address, sizeof(address));
  std::memcpy(message.target_address.data(), &address, sizeof(address));
  return message;
}

bool is_read(const Message& message, size_t size_bytes = sizeof(Message)) {
  std::vector<std::byte> packet(sizeof(message) + 1);
  std::memcpy(packet.data(), &message, sizeof(message));
  Message read;
  return read_message({packet.data(), size_bytes}, read);
}

TEST(ConnectionMessages, RightOnesAreRead) { EXPECT_TRUE(is_read(right_request())); }

TEST(ConnectionMessages, OthersAreRefused) {
  EXPECT_FALSE(is_read(right_request(), 0));
  EXPECT_FALSE(is_read(right_request(), sizeof(Message) - 1));
  EXPECT_FALSE(is_read(right_request(), sizeof(Message) + 1));
  const auto changed = [](auto&& change) {
    Message message = right_request();
    change(message);
    return is_read(message);
  };
  EXPECT_FALSE(changed([](Message& message) { message.magic ^= 1; }));
  EXPECT_FALSE(changed([](Message& message) { message.type = static_cast<MessageType>(0); }));
  EXPECT_FALSE(changed([](Message& message) { message.type = static_cast<MessageType>(9); }));
  EXPECT_FALSE(changed([](Message& message) { message.source_id = 0; }));
  EXPECT_FALSE(changed([](Message& message) { message.queue_pair_number = 1 << 24; }));
  EXPECT_FALSE(changed([](Message& message) { message.packet_number = 1 << 24; }));
  EXPECT_FALSE(changed([](Message& message) { message.retry_count = 8; }));
  EXPECT_FALSE(changed([](Message& message) { message.rnr_retry_count = 8; }));
  EXPECT_FALSE(changed([](Message& message) { message.source_address.fill(0); }));
  EXPECT_FALSE(changed([](Message& message) { message.target_address.fill(0xff); }));
}

}  // namespace
}  // namespace verbena::soft::cm
