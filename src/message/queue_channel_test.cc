// The SEND/RECV channel over queues that only write down what they are given.
#include "src/message/queue_channel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "src/channel/fake_queue_for_test.h"
#include "src/memory/arena.h"

namespace verbena::message {
namespace {

constexpr uint32_t kBufferBytes = 100;
constexpr uint32_t kStride = 128;

class QueueChannelTest : public testing::Test {
 protected:
  channel::SlotArray allocate(uint32_t count) {
    memory_.emplace_back(static_cast<char*>(std::aligned_alloc(kCacheLineBytes, kStride * count)));
    return {memory_.back().get(), {kBufferBytes, kStride}, count};
  }
  // What the device makes of a SEND with this immediate.
  ibv_wc arrival(uint64_t receive, uint32_t immediate, uint32_t bytes) {
    ibv_wc completion = channel::FakeQueue::completion(receive);
    completion.opcode = IBV_WC_RECV;
    completion.wc_flags = IBV_WC_WITH_IMM;
    completion.imm_data = htonl(immediate);
    completion.byte_len = bytes;
    completion.qp_num = 77;
    return completion;
  }
  std::vector<uint64_t> posted() const {
    std::vector<uint64_t> all;
    for (const auto& list : fake_.receives) all.insert(all.end(), list.begin(), list.end());
    return all;
  }

  std::vector<std::unique_ptr<char, channel::Free>> memory_;
  channel::FakeQueue fake_;
};

TEST_F(QueueChannelTest, MessagesTakeBuffersInTurnAndCreditsBringThemBack) {
  QueueSender sender(allocate(3), 7, 42, /*inline_limit_bytes=*/16);
  std::vector<uint64_t> addresses;
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(sender.credits(), 3 - i);
    const char* const payload = sender.payload();
    const ibv_send_wr& send = sender.seal(i == 0 ? 16 : 17);
    EXPECT_EQ(send.opcode, IBV_WR_SEND_WITH_IMM);
    EXPECT_EQ(ntohl(send.imm_data), 42u);
    EXPECT_EQ(send.sg_list[0].addr, reinterpret_cast<uint64_t>(payload));
    EXPECT_EQ(send.sg_list[0].lkey, 7u);
    EXPECT_EQ(send.send_flags, i == 0 ? unsigned{IBV_SEND_INLINE} : 0u);
    addresses.push_back(send.sg_list[0].addr);
  }
  EXPECT_EQ(sender.credits(), 0u);
  EXPECT_FALSE(sender.add_credits(4));
  EXPECT_TRUE(sender.add_credits(1));
  EXPECT_EQ(sender.seal(20).sg_list[0].addr, addresses[0]);
  EXPECT_FALSE(sender.add_credits(4));
  EXPECT_TRUE(sender.add_credits(3));
}

TEST_F(QueueChannelTest, AReceiverCountsWhatItOwes) {
  QueueCredits credits(3);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(credits.take());
  EXPECT_FALSE(credits.take());
  credits.release();
  credits.release();
  // Freed, but the sender does not know yet.
  EXPECT_FALSE(credits.take());
  EXPECT_EQ(credits.take_credits(1), 1u);
  EXPECT_TRUE(credits.take());
  EXPECT_FALSE(credits.take());
  EXPECT_EQ(credits.in_use(), 2u);
  EXPECT_EQ(credits.take_credits(9), 1u);
}

TEST_F(QueueChannelTest, UrgentCreditsTravelInMessagesThatDoNotWait) {
  QueueCredits credits(4);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(credits.take());
  credits.release();
  credits.release_at_once();
  credits.release_at_once();
  EXPECT_EQ(credits.in_use(), 1u);
  EXPECT_EQ(credits.credits(), 3u);
  EXPECT_EQ(credits.urgent(), 2u);
  // They are as little the sender's as the others until they are returned.
  EXPECT_FALSE(credits.take());
  EXPECT_EQ(credits.take_credits(9), 1u);
  EXPECT_EQ(credits.take_credits(9), 0u);
  EXPECT_EQ(credits.take_all_credits(1), 1u);
  credits.release();
  EXPECT_EQ(credits.take_all_credits(9), 2u);
  EXPECT_EQ(credits.credits(), 0u);
}

TEST_F(QueueChannelTest, EveryConnectionBringsReceives) {
  SharedReceives receives(fake_.shared_receives(), fake_.completions(), 10, kBufferBytes);
  EXPECT_EQ(receives.add(allocate(3).base, kStride, 5, 3), 0);
  EXPECT_EQ(receives.room(), 7u);
  EXPECT_EQ(receives.add(allocate(7).base, kStride, 6, 7), 0);
  EXPECT_EQ(receives.room(), 0u);
  std::vector<uint64_t> all = posted();
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all, (std::vector<uint64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(receives.buffer(1), memory_[0].get() + kStride);
  EXPECT_EQ(receives.buffer(3), memory_[1].get());
}

TEST_F(QueueChannelTest, ArrivalsAreTakenAndTheirReceivesComeBack) {
  SharedReceives receives(fake_.shared_receives(), fake_.completions(), 6, kBufferBytes);
  EXPECT_EQ(receives.add(allocate(6).base, kStride, 5, 6), 0);
  fake_.receives.clear();
  EXPECT_EQ(receives.take().payload, nullptr);
  fake_.arrivals = {arrival(4, 2, 33), arrival(0, 1, 44)};
  const SharedReceives::Arrival first = receives.take();
  EXPECT_EQ(first.payload, receives.buffer(4));
  EXPECT_EQ(first.bytes, 33u);
  EXPECT_EQ(first.connection, 2u);
  EXPECT_EQ(first.queue_pair_number, 77u);
  const SharedReceives::Arrival second = receives.take();
  EXPECT_EQ(second.receive, 0u);
  receives.give_back(second.receive);
  receives.give_back(first.receive);
  EXPECT_TRUE(posted().empty());
  receives.flush();
  EXPECT_EQ(posted().size(), 2u);
  EXPECT_FALSE(receives.error());
}

TEST_F(QueueChannelTest, WhatIsNoMessageIsNobodys) {
  SharedReceives receives(fake_.shared_receives(), fake_.completions(), 4, kBufferBytes);
  EXPECT_EQ(receives.add(allocate(4).base, kStride, 5, 4), 0);
  fake_.receives.clear();
  ibv_wc without_immediate = arrival(1, 0, 20);
  without_immediate.wc_flags = 0;
  ibv_wc flushed = arrival(2, 0, 0);
  flushed.status = IBV_WC_WR_FLUSH_ERR;
  fake_.arrivals = {flushed, without_immediate, arrival(3, 0, kBufferBytes + 1), arrival(9, 0, 8)};
  // That of a broken queue pair goes back; nothing else happens.
  const SharedReceives::Arrival arrived = receives.take();
  EXPECT_EQ(arrived.receive, 1u);
  EXPECT_EQ(arrived.connection, ~0u);
  EXPECT_EQ(receives.take().bytes, 0u);
  EXPECT_FALSE(receives.error());
  // A receive that was never posted.
  EXPECT_EQ(receives.take().payload, nullptr);
  EXPECT_TRUE(receives.error());
}

TEST_F(QueueChannelTest, AQueueThatTakesNothingIsAnError) {
  SharedReceives receives(fake_.shared_receives(), fake_.completions(), 2, kBufferBytes);
  fake_.post_result = ENOMEM;
  EXPECT_EQ(receives.add(allocate(2).base, kStride, 5, 2), ENOMEM);
  EXPECT_EQ(receives.error().kind, channel::ChannelError::Kind::kPost);
}

TEST_F(QueueChannelTest, TheCostCountsAReceive) {
  const channel::CostInputs inputs{
      .inline_limit_bytes = 100, .signal_interval = 8, .post_batch = 1};
  const channel::MessageCost cost = queue_message_cost(24, inputs);
  EXPECT_EQ(cost.wire_bytes, 24u);
  EXPECT_EQ(cost.sender.completions, 1.0 / 8);
  EXPECT_EQ(cost.receiver.receives, 1);
  EXPECT_EQ(cost.receiver.completions, 1);
}

}  // namespace
}  // namespace verbena::message
