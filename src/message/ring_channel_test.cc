// Both ends of a ring, with a device between them that the test drives byte by byte.
#include "src/message/ring_channel.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "src/base/runtime.h"

namespace verbena::message {
namespace {

class RingTest : public testing::Test {
 protected:
  void make(uint32_t slots, uint32_t room_bytes, uint32_t inline_limit_bytes = 0) {
    const channel::SlotShape shape = RingMark::shape(room_bytes);
    local_ = allocate(shape, slots);
    remote_ = allocate(shape, slots);
    sender_ = RingSender(local_, 7);
    receiver_ = RingReceiver(remote_);
    receiver_.begin();
    sender_.bind({reinterpret_cast<uint64_t>(remote_.base), 9}, inline_limit_bytes);
  }
  channel::SlotArray allocate(const channel::SlotShape& shape, uint32_t count) {
    const uint64_t bytes = channel::SlotArray::size_bytes(shape, count);
    memory_.emplace_back(static_cast<char*>(std::aligned_alloc(kCacheLineBytes, bytes)));
    std::memset(memory_.back().get(), 0x5a, bytes);
    return {memory_.back().get(), shape, count};
  }

  ibv_send_wr& send(const std::string& text) {
    std::memcpy(sender_.payload(), text.data(), text.size());
    return sender_.seal(static_cast<uint32_t>(text.size()));
  }
  // What the device does.
  static void deliver(const ibv_send_wr& write, uint32_t from, uint32_t to) {
    std::memcpy(reinterpret_cast<char*>(write.wr.rdma.remote_addr) + from,
                reinterpret_cast<const char*>(write.sg_list[0].addr) + from, to - from);
  }
  static void deliver(const ibv_send_wr& write) { deliver(write, 0, write.sg_list[0].length); }

  std::string text_of(const RingReceiver::Arrival& arrival) {
    return arrival.payload == nullptr ? "nothing" : std::string(arrival.payload, arrival.bytes);
  }
  void return_credits() { ASSERT_TRUE(sender_.add_credits(receiver_.take_credits(~0u))); }

  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  std::vector<std::unique_ptr<char, Free>> memory_;
  channel::SlotArray local_;
  channel::SlotArray remote_;
  RingSender sender_;
  RingReceiver receiver_;
};

TEST_F(RingTest, ACreditComesBackForSlotsThatAreFreeInARow) {
  make(4, 30);
  for (const char* text : {"a", "b", "c", "d"}) deliver(send(text));
  EXPECT_EQ(sender_.credits(), 0u);
  for (const char* text : {"a", "b", "c", "d"}) {
    EXPECT_EQ(text_of(receiver_.next()), text);
    EXPECT_TRUE(receiver_.take());
  }
  EXPECT_EQ(receiver_.next().payload, nullptr);
  receiver_.release(2);
  receiver_.release(1);
  EXPECT_EQ(receiver_.credits(), 0u);
  receiver_.release(0);
  EXPECT_EQ(receiver_.credits(), 3u);
  EXPECT_EQ(receiver_.in_use(), 1u);
  EXPECT_EQ(receiver_.take_credits(2), 2u);
  EXPECT_TRUE(sender_.add_credits(2));
  EXPECT_EQ(sender_.credits(), 2u);
  // The message in the last slot is still what it was.
  EXPECT_EQ(std::string(remote_.slot(3) + RingMark::kPayloadOffset, 1), "d");
  deliver(send("e"));
  EXPECT_EQ(text_of(receiver_.next()), "e");
}

TEST_F(RingTest, ADescriptorIsFilledInOnce) {
  make(2, 200, /*inline_limit_bytes=*/64);
  for (int round = 0; round < 3; ++round) {
    for (uint32_t slot = 0; slot < 2; ++slot) {
      const std::string text(slot == 0 ? 8 : 150, 'x');
      const ibv_send_wr& write = send(text);
      EXPECT_EQ(write.opcode, IBV_WR_RDMA_WRITE);
      EXPECT_EQ(write.wr.rdma.remote_addr, reinterpret_cast<uint64_t>(remote_.slot(slot)));
      EXPECT_EQ(write.wr.rdma.rkey, 9u);
      EXPECT_EQ(write.sg_list[0].addr, reinterpret_cast<uint64_t>(local_.slot(slot)));
      EXPECT_EQ(write.sg_list[0].lkey, 7u);
      EXPECT_EQ(write.sg_list[0].length, RingMark::sealed_bytes(slot == 0 ? 8 : 150));
      EXPECT_EQ(write.send_flags, slot == 0 ? unsigned{IBV_SEND_INLINE} : 0u);
      deliver(write);
      EXPECT_EQ(text_of(receiver_.next()), text);
      EXPECT_TRUE(receiver_.take());
      receiver_.release(slot);
    }
    return_credits();
  }
}

// Payloads of bytes that look like flags, delivered a word at a time, freed in any order.
TEST_F(RingTest, RandomMessagesArriveWholeAndInOrder) {
  const uint64_t seed = run_seed();
  SCOPED_TRACE("VERBENA_SEED=" + std::to_string(seed));
  Random random(seed);
  constexpr uint32_t kRoom = 50;
  make(7, kRoom);
  std::deque<ibv_send_wr> on_the_way;
  std::deque<std::string> expected;
  std::vector<uint32_t> held;
  uint64_t arrived = 0;
  const char bytes[] = {0x5a, static_cast<char>(0xc3), 0, 1};
  while (arrived < 20'000) {
    switch (random.below(4)) {
      case 0: {
        if (sender_.credits() == 0) break;
        std::string text(random.below(kRoom + 1), '\0');
        for (char& byte : text) byte = bytes[random.below(sizeof(bytes))];
        expected.push_back(text);
        on_the_way.push_back(send(text));
        break;
      }
      case 1: {
        if (on_the_way.empty()) break;
        const ibv_send_wr& write = on_the_way.front();
        for (uint32_t at = 0; at < write.sg_list[0].length; at += 8) {
          if (receiver_.in_use() + on_the_way.size() == sender_.in_use()) {
            // Nothing else is there that could be found.
            ASSERT_EQ(receiver_.next().payload, nullptr) << "at byte " << at;
          }
          deliver(write, at, at + 8);
        }
        on_the_way.pop_front();
        break;
      }
      case 2: {
        const RingReceiver::Arrival arrival = receiver_.next();
        if (arrival.payload == nullptr) break;
        ASSERT_EQ(text_of(arrival), expected.front());
        expected.pop_front();
        ASSERT_TRUE(receiver_.take());
        held.push_back(arrival.slot);
        ++arrived;
        break;
      }
      default:
        if (!held.empty()) {
          const size_t which = random.below(held.size());
          receiver_.release(held[which]);
          held.erase(held.begin() + static_cast<ptrdiff_t>(which));
        }
        if (random.below(3) == 0) return_credits();
    }
    ASSERT_FALSE(receiver_.error());
    ASSERT_LE(receiver_.in_use(), sender_.in_use());
  }
}

// What lies in a slot of the lap before is no message, also once the count of laps has begun anew.
TEST(RingMarkTest, AMessageIsOfItsLap) {
  alignas(kCacheLineBytes) char slot[kCacheLineBytes] = {};
  const channel::SlotShape shape = RingMark::shape(30);
  uint32_t lap = (1u << 24) - 4;
  std::set<uint32_t> laps;
  for (uint32_t i = 0; i < 8; ++i, lap = RingMark::lap_after(lap)) {
    EXPECT_TRUE(RingMark::is_empty(slot, lap));
    EXPECT_EQ(RingMark::probe(slot, shape, lap).arrival, channel::Arrival::kNone);
    RingMark::seal(slot, shape, i, lap);
    EXPECT_FALSE(RingMark::is_empty(slot, lap));
    const channel::Probe probe = RingMark::probe(slot, shape, lap);
    EXPECT_EQ(probe.arrival, channel::Arrival::kMessage);
    EXPECT_EQ(probe.bytes, i);
    laps.insert(lap);
  }
  EXPECT_EQ(laps.size(), 8u);
  EXPECT_TRUE(laps.contains(0));
}

TEST_F(RingTest, ARingBeginsAnewWithAnotherPeer) {
  make(3, 30);
  deliver(send("first"));
  deliver(send("second"));
  for (uint32_t slot = 0; slot < 2; ++slot) {
    ASSERT_NE(receiver_.next().payload, nullptr);
    EXPECT_TRUE(receiver_.take());
    receiver_.release(slot);
  }
  receiver_.begin();
  sender_.bind({reinterpret_cast<uint64_t>(remote_.base), 9}, 0);
  EXPECT_EQ(receiver_.next().payload, nullptr);
  EXPECT_EQ(sender_.credits(), 3u);
  deliver(send("third"));
  EXPECT_EQ(text_of(receiver_.next()), "third");
}

TEST_F(RingTest, WhatAPeerMustNotDoIsAnError) {
  make(2, 30);
  EXPECT_FALSE(sender_.add_credits(1));
  deliver(send("one"));
  EXPECT_FALSE(sender_.add_credits(2));
  EXPECT_EQ(sender_.credits(), 1u);

  // A size beyond the slot, and a flag of neither value.
  const uint64_t first_lap = uint64_t{RingMark::kFirstLap} << 32;
  const uint64_t too_long = uint64_t{0x5a} << 56 | first_lap | 31;
  std::memcpy(remote_.slot(0), &too_long, sizeof(too_long));
  EXPECT_EQ(receiver_.next().payload, nullptr);
  EXPECT_EQ(receiver_.error().kind, channel::ChannelError::Kind::kViolation);
  receiver_.begin();
  const uint64_t no_flag = uint64_t{0x77} << 56 | first_lap | 3;
  std::memcpy(remote_.slot(0), &no_flag, sizeof(no_flag));
  EXPECT_EQ(receiver_.next().payload, nullptr);
  EXPECT_EQ(receiver_.error().kind, channel::ChannelError::Kind::kViolation);

  // More messages than there are slots.
  make(2, 30);
  for (int i = 0; i < 2; ++i) {
    deliver(send("x"));
    ASSERT_NE(receiver_.next().payload, nullptr);
    ASSERT_TRUE(receiver_.take());
  }
  ASSERT_TRUE(sender_.add_credits(2));
  deliver(send("overwrites"));
  ASSERT_NE(receiver_.next().payload, nullptr);
  EXPECT_FALSE(receiver_.take());
  EXPECT_EQ(receiver_.error().kind, channel::ChannelError::Kind::kViolation);
}

TEST_F(RingTest, TheCostCountsOneWriteAndNoReceive) {
  const channel::CostInputs inputs{
      .inline_limit_bytes = 100, .signal_interval = 16, .post_batch = 1};
  const channel::MessageCost small = ring_message_cost(8, inputs);
  EXPECT_EQ(small.wire_bytes, RingMark::sealed_bytes(8));
  EXPECT_EQ(small.sender.work_requests, 1);
  EXPECT_EQ(small.sender.completions, 1.0 / 16);
  EXPECT_EQ(small.sender.device_reads, 0);
  EXPECT_EQ(small.receiver.receives, 0);
  EXPECT_EQ(small.receiver.polled_lines, 1);
  EXPECT_EQ(small.receiver.cleared_bytes, 0);
  EXPECT_EQ(ring_message_cost(200, inputs).sender.device_reads, 1);
}

}  // namespace
}  // namespace verbena::message
