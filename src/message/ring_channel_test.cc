// Both ends of a ring, with a device between them that the test drives byte by byte.
#include "src/message/ring_channel.h"

#include <gtest/gtest.h>

#include <algorithm>
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
    sender_ = RingSender(local_, 7, kZeros);
    receiver_ = RingReceiver(remote_);
    receiver_.begin();
    sender_.bind({reinterpret_cast<uint64_t>(remote_.base), 9}, inline_limit_bytes);
  }
  channel::SlotArray allocate(const channel::SlotShape& shape, uint32_t count) {
    const uint64_t bytes = channel::SlotArray::size_bytes(shape, count);
    memory_.emplace_back(static_cast<char*>(std::aligned_alloc(kCacheLineBytes, bytes)));
    std::memset(memory_.back().get(), 0, bytes);
    return {memory_.back().get(), shape, count};
  }

  ibv_send_wr& send(const std::string& text) {
    std::memcpy(sender_.payload(), text.data(), text.size());
    return sender_.request(sender_.seal(static_cast<uint32_t>(text.size())));
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
  static constexpr char kZeros[8] = {};
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

// Gathered ones among those that are copied, of bytes that look like flags: what of their payloads
// is left in a slot must not be taken for a tail. A word at a time is delivered.
class GatheringRingTest : public RingTest {
 protected:
  struct Posted {
    ibv_send_wr request{};
    ibv_sge entries[kGatherEntries] = {};
    std::unique_ptr<std::string> memory;  // until it is delivered

    explicit Posted(const ibv_send_wr& wr) : request(wr) {
      for (int i = 0; i < wr.num_sge; ++i) entries[i] = wr.sg_list[i];
    }
    uint32_t size_bytes() const {
      uint32_t total = 0;
      for (int i = 0; i < request.num_sge; ++i) total += entries[i].length;
      return total;
    }
    void deliver_word(uint32_t at) const {
      for (uint32_t byte = at; byte < at + 8; ++byte) {
        uint32_t offset = byte;
        int entry = 0;
        while (offset >= entries[entry].length) offset -= entries[entry++].length;
        reinterpret_cast<char*>(request.wr.rdma.remote_addr)[byte] =
            reinterpret_cast<const char*>(entries[entry].addr)[offset];
      }
    }
  };

  void clear_before(uint32_t bytes) {
    channel::SlotRequest clear;
    if (!sender_.clear_tail(bytes, &clear)) return;
    on_the_way_.emplace_back(clear.request);
    ++cleared_;
  }
  void copy(const std::string& text) {
    std::memcpy(sender_.payload(), text.data(), text.size());
    clear_before(static_cast<uint32_t>(text.size()));
    on_the_way_.emplace_back(sender_.request(sender_.seal(static_cast<uint32_t>(text.size()))));
  }
  void gather(const std::string& text, uint32_t written) {
    auto memory = std::make_unique<std::string>(text.substr(written));
    std::memcpy(sender_.payload(), text.data(), written);
    clear_before(static_cast<uint32_t>(text.size()));
    GatherRequest request;
    sender_.seal_gathered(written, {memory->data(), static_cast<uint32_t>(memory->size()), 11},
                          &request);
    on_the_way_.emplace_back(request.request);
    on_the_way_.back().memory = std::move(memory);
  }
  // Whole, and then taken: it is `text`.
  void expect_next(const std::string& text) {
    while (!on_the_way_.empty()) {
      const Posted& posted = on_the_way_.front();
      for (uint32_t at = 0; at < posted.size_bytes(); at += 8) {
        ASSERT_EQ(receiver_.next().payload, nullptr) << "before byte " << at;
        posted.deliver_word(at);
      }
      on_the_way_.pop_front();
    }
    const RingReceiver::Arrival arrival = receiver_.next();
    ASSERT_EQ(text_of(arrival), text);
    ASSERT_TRUE(receiver_.take());
    receiver_.release(arrival.slot);
    return_credits();
  }

  std::deque<Posted> on_the_way_;
  uint32_t cleared_ = 0;
};

TEST_F(GatheringRingTest, HeaderAndTailLieAroundThePayload) {
  make(2, 200, /*inline_limit_bytes=*/64);
  const std::string text(16 + 99, 'p');
  gather(text, 16);
  const Posted& posted = on_the_way_.front();
  ASSERT_EQ(posted.request.num_sge, 3);
  EXPECT_EQ(posted.request.opcode, IBV_WR_RDMA_WRITE);
  EXPECT_EQ(posted.request.send_flags, 0u);
  EXPECT_EQ(posted.request.wr.rdma.remote_addr, reinterpret_cast<uint64_t>(remote_.slot(0)));
  EXPECT_EQ(posted.entries[0].addr, reinterpret_cast<uint64_t>(local_.slot(0)));
  EXPECT_EQ(posted.entries[0].length, RingMark::kPayloadOffset + 16);
  EXPECT_EQ(posted.entries[1].addr, reinterpret_cast<uint64_t>(posted.memory->data()));
  EXPECT_EQ(posted.entries[1].length, 96u);
  EXPECT_EQ(posted.entries[1].lkey, 11u);
  EXPECT_EQ(posted.entries[2].length, 8u);
  EXPECT_EQ(posted.size_bytes(), RingMark::sealed_bytes(16 + 99));
  expect_next(text);
}

TEST_F(GatheringRingTest, AShorterMessageIsPrecededByAWordThatClears) {
  make(2, 200);
  // The payload's words look like tails of either flag.
  std::string text(16 + 160, '\x5a');
  for (const char flag : {'\x5a', '\xc3'}) {
    std::fill(text.begin() + 16, text.end(), flag);
    for (int slot = 0; slot < 2; ++slot) {
      gather(text, 16);
      expect_next(text);
    }
    const uint32_t before = cleared_;
    for (const uint32_t bytes : {60u, 100u}) {
      copy(std::string(bytes, flag));
      expect_next(std::string(bytes, flag));
    }
    EXPECT_EQ(cleared_, before + 2);
  }
}

TEST_F(GatheringRingTest, MessagesOfOneSizeNeedNothingElse) {
  make(3, 200);
  for (int i = 0; i < 20; ++i) {
    const std::string text(16 + 120, static_cast<char>(i % 2 == 0 ? 0x5a : 0xc3));
    i % 5 == 4 ? copy(text) : gather(text, 16);
    expect_next(text);
  }
  // Longer ones reach beyond what is unknown.
  for (int i = 0; i < 3; ++i) {
    copy(std::string(180, 'x'));
    expect_next(std::string(180, 'x'));
  }
  EXPECT_EQ(cleared_, 0u);
}

TEST_F(GatheringRingTest, RandomMessagesArriveWholeAndInOrder) {
  const uint64_t seed = run_seed();
  SCOPED_TRACE("VERBENA_SEED=" + std::to_string(seed));
  Random random(seed);
  constexpr uint32_t kRoom = 120;
  make(3, kRoom, /*inline_limit_bytes=*/random.below(2) == 0 ? 0 : 64);
  const char bytes[] = {0x5a, static_cast<char>(0xc3), 0};
  for (int i = 0; i < 20'000; ++i) {
    std::string text(random.below(kRoom + 1), '\0');
    const char all = bytes[random.below(sizeof(bytes))];
    for (char& byte : text) byte = random.below(4) == 0 ? bytes[random.below(sizeof(bytes))] : all;
    const auto written = static_cast<uint32_t>(16 + 8 * random.below(3));
    if (text.size() >= written + 8 && random.below(2) == 0) {
      gather(text, written);
    } else {
      copy(text);
    }
    ASSERT_NO_FATAL_FAILURE(expect_next(text)) << "message " << i;
    ASSERT_FALSE(receiver_.error());
  }
  EXPECT_GT(cleared_, 0u);
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

// By a sender that leaves without telling of it.
TEST_F(RingTest, WhatWasWrittenAheadIsNoMessageOfTheNextPeer) {
  make(4, 30);
  deliver(send("first"));
  ASSERT_EQ(text_of(receiver_.next()), "first");
  ASSERT_TRUE(receiver_.take());
  receiver_.release(0);
  for (const char* text : {"ahead", "of its", "turn"}) deliver(send(text));
  receiver_.begin();
  sender_.bind({reinterpret_cast<uint64_t>(remote_.base), 9}, 0);
  for (int round = 0; round < 2; ++round) {
    for (uint32_t slot = 0; slot < 4; ++slot) {
      EXPECT_EQ(text_of(receiver_.next()), "nothing") << "slot " << slot;
      deliver(send("of the next"));
      EXPECT_EQ(text_of(receiver_.next()), "of the next");
      ASSERT_TRUE(receiver_.take());
      receiver_.release(slot);
      return_credits();
    }
  }
}

// Also if it is not asked for: the peer may have put another message there since.
TEST_F(RingTest, WhatWasUsedEarlyIsForgottenOnceItIsTaken) {
  make(3, 30);
  for (int round = 0; round < 2; ++round) {
    for (const char* text : {"waits", "early", "last"}) deliver(send(text));
    EXPECT_EQ(text_of(receiver_.look_ahead()), "waits");
    const RingReceiver::Arrival early = receiver_.look_ahead();
    receiver_.use_early(early.slot);
    for (uint32_t slot = 0; slot < 3; ++slot) {
      ASSERT_NE(receiver_.next().payload, nullptr);
      ASSERT_TRUE(receiver_.take());
      receiver_.release(slot);
    }
    return_credits();
  }
  for (uint32_t slot = 0; slot < 3; ++slot) {
    deliver(send("another"));
    ASSERT_NE(receiver_.next().payload, nullptr);
    EXPECT_FALSE(receiver_.was_used_early(slot)) << "slot " << slot;
    ASSERT_TRUE(receiver_.take());
    receiver_.release(slot);
  }
}

TEST_F(RingTest, WhatNeedNotWaitIsFoundBehindWhatDoes) {
  make(4, 30);
  // Around the end of the ring, where the lap is another one.
  for (int round = 0; round < 7; ++round) {
    SCOPED_TRACE(round);
    EXPECT_EQ(receiver_.look_ahead().payload, nullptr);
    deliver(send("waits"));
    EXPECT_EQ(text_of(receiver_.look_ahead()), "waits");
    EXPECT_EQ(receiver_.look_ahead().payload, nullptr);
    deliver(send("first"));
    const RingReceiver::Arrival first = receiver_.look_ahead();
    EXPECT_EQ(text_of(first), "first");
    receiver_.use_early(first.slot);
    const ibv_send_wr& write = send("second");
    deliver(write, 0, 8);
    EXPECT_EQ(receiver_.look_ahead().payload, nullptr) << "its tail is missing";
    deliver(write);
    EXPECT_EQ(text_of(receiver_.look_ahead()), "second");
    EXPECT_EQ(receiver_.look_ahead().payload, nullptr);
    for (const char* text : {"waits", "first", "second"}) {
      const RingReceiver::Arrival arrival = receiver_.next();
      EXPECT_EQ(text_of(arrival), text);
      EXPECT_EQ(receiver_.was_used_early(arrival.slot), arrival.slot == first.slot);
      ASSERT_TRUE(receiver_.take());
      receiver_.release(arrival.slot);
    }
    return_credits();
  }
}

TEST_F(RingTest, NoFurtherThanTheSenderHasCreditsIsLookedAhead) {
  make(3, 30);
  deliver(send("in use"));
  ASSERT_NE(receiver_.next().payload, nullptr);
  ASSERT_TRUE(receiver_.take());
  for (const char* text : {"one", "two"}) {
    deliver(send(text));
    EXPECT_EQ(text_of(receiver_.look_ahead()), text);
  }
  EXPECT_EQ(receiver_.look_ahead().payload, nullptr);
  EXPECT_FALSE(receiver_.error());
}

// Both ends are zero then, whatever was sent, and for no more than was used.
TEST_F(RingTest, WhatWasWrittenIsClearedForTheNextPeer) {
  const uint64_t seed = run_seed();
  SCOPED_TRACE("VERBENA_SEED=" + std::to_string(seed));
  Random random(seed);
  constexpr uint32_t kSlots = 5;
  constexpr uint32_t kRoom = 300;
  make(kSlots, kRoom);
  const auto is_zero = [](const channel::SlotArray& slots) {
    return std::all_of(slots.base, slots.base + slots.size_bytes(),
                       [](char byte) { return byte == 0; });
  };
  for (int owner = 0; owner < 200; ++owner) {
    const uint64_t messages = random.below(3 * kSlots);
    const uint64_t most = random.below(kRoom + 1);
    for (uint64_t i = 0; i < messages; ++i) {
      deliver(send(std::string(random.below(most + 1), static_cast<char>(0xc3))));
      const RingReceiver::Arrival arrival = receiver_.next();
      ASSERT_NE(arrival.payload, nullptr) << "message " << i << " of owner " << owner;
      ASSERT_TRUE(receiver_.take());
      receiver_.release(arrival.slot);
      return_credits();
    }
    if (random.below(8) == 0) {
      // Of one that has ended in the midst of something.
      std::memset(remote_.base, 0x5a, remote_.size_bytes());
      receiver_.break_off();
    }
    receiver_.begin();
    sender_.bind({reinterpret_cast<uint64_t>(remote_.base), 9}, 0);
    ASSERT_TRUE(is_zero(remote_)) << "owner " << owner;
    ASSERT_TRUE(is_zero(local_)) << "owner " << owner;
  }

  deliver(send(std::string(20, 'x')));
  ASSERT_NE(receiver_.next().payload, nullptr);
  ASSERT_TRUE(receiver_.take());
  receiver_.release(0);
  const uint64_t before = internal::data_path_counters.bytes_cleared;
  receiver_.begin();
  sender_.bind({reinterpret_cast<uint64_t>(remote_.base), 9}, 0);
  // And each slot's head, and what is kept beside it.
  EXPECT_LE(internal::data_path_counters.bytes_cleared - before,
            2 * (RingMark::sealed_bytes(20) + kSlots) + kSlots * channel::kWordBytes);
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
  receiver_.break_off();
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
