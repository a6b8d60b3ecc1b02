// Headers that a messenger writes are read as they were, and what none writes is refused.
#include "src/message/message_header.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>

namespace verbena::message {
namespace {

class MessageHeaderTest : public testing::Test {
 protected:
  uint32_t put(const MessageHeader& header) {
    return static_cast<uint32_t>(put_header(bytes_, header, 77, 88) - bytes_);
  }
  char bytes_[kMaxHeaderBytes + 8] = {};
  ParsedMessage parsed_;
};

TEST_F(MessageHeaderTest, IsReadAsItWasWritten) {
  for (uint8_t flags = 0; flags <= kKnownFlags; ++flags) {
    const MessageHeader header{.sequence = 5,
                               .kind = Kind::kEager,
                               .flags = flags,
                               .ring_credits = 6,
                               .queue_credits = 7,
                               .tag = 0x123456789abcdef0};
    const uint32_t bytes = put(header);
    const bool same_tag = (flags & kSameTag) != 0;
    EXPECT_EQ(bytes, 8u + (same_tag ? 0 : 8) + ((flags & kHasData) != 0 ? 8 : 0) +
                         ((flags & kWantsFinish) != 0 ? 8 : 0));
    parsed_ = {};
    ASSERT_TRUE(parse(bytes_, bytes + 3, &parsed_));
    EXPECT_EQ(parsed_.header.sequence, 5u);
    EXPECT_EQ(parsed_.header.flags, flags);
    EXPECT_EQ(parsed_.header.ring_credits, 6u);
    EXPECT_EQ(parsed_.header.queue_credits, 7u);
    EXPECT_EQ(parsed_.header.tag, same_tag ? 0 : header.tag);
    EXPECT_EQ(parsed_.data, (flags & kHasData) != 0 ? 77u : 0u);
    EXPECT_EQ(parsed_.operation, (flags & kWantsFinish) != 0 ? 88u : 0u);
    EXPECT_EQ(parsed_.payload, bytes_ + bytes);
    EXPECT_EQ(parsed_.bytes, 3u);
    for (uint32_t shorter = 0; shorter < bytes; ++shorter) {
      EXPECT_FALSE(parse(bytes_, shorter, &parsed_)) << shorter << " of " << bytes;
    }
  }
}

TEST_F(MessageHeaderTest, OnlyEagerMessagesLeaveOutTheirTag) {
  for (const Kind kind : {Kind::kRendezvous, Kind::kFinish, Kind::kCredits, Kind::kRingOffer,
                          Kind::kOneSided, Kind::kTarget, Kind::kChunk, Kind::kAnswer}) {
    const uint32_t bytes = put({.kind = kind, .flags = kSameTag});
    EXPECT_FALSE(parse(bytes_, bytes + 64, &parsed_)) << static_cast<int>(kind);
  }
}

TEST_F(MessageHeaderTest, UnknownFlagsAndKindsAreRefused) {
  const uint32_t bytes = put({.kind = Kind::kEager, .flags = kKnownFlags + 1});
  EXPECT_FALSE(parse(bytes_, bytes + 64, &parsed_));
  put({.kind = static_cast<Kind>(0)});
  EXPECT_FALSE(parse(bytes_, sizeof(bytes_), &parsed_));
}

}  // namespace
}  // namespace verbena::message
