#include "src/channel/receive_pool.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <set>
#include <vector>

#include "src/channel/completion_receiver.h"
#include "src/channel/fake_queue_for_test.h"

namespace verbena::channel {
namespace {

TEST(ReceivePoolTest, PostsEveryReceiveOnceWithItsOwnTag) {
  FakeQueue fake;
  ReceivePool<OwnReceiveQueue> pool({fake.queue_pair()}, {}, ReceivePoolSizes{21, 8});
  ASSERT_EQ(pool.post_all(), 0);
  std::set<uint64_t> numbers;
  for (const auto& list : fake.receives) {
    EXPECT_LE(list.size(), 8u);
    numbers.insert(list.begin(), list.end());
  }
  EXPECT_EQ(numbers.size(), 21u);
}

TEST(ReceivePoolTest, ConsumedReceivesGoBackAsLists) {
  FakeQueue fake;
  ReceivePool<SharedReceiveQueueRef> pool({fake.shared_receives()}, {}, ReceivePoolSizes{10, 4});
  ASSERT_EQ(pool.post_all(), 0);
  fake.receives.clear();
  for (uint64_t number : {7, 2, 9}) pool.give_back(number);
  EXPECT_TRUE(fake.receives.empty());
  pool.give_back(0);
  ASSERT_EQ(fake.receives.size(), 1u);
  EXPECT_EQ(std::set<uint64_t>(fake.receives[0].begin(), fake.receives[0].end()),
            (std::set<uint64_t>{0, 2, 7, 9}));
}

TEST(ReceivePoolTest, SizesLeaveAReceiveForEveryMessageWhileABatchWaits) {
  for (uint32_t messages = 1; messages < 200; ++messages) {
    for (const uint32_t buffer_bytes : {64u, 1u << 20}) {
      const ReceivePoolSizes sizes = ReceivePoolSizes::for_messages(messages, buffer_bytes);
      EXPECT_GE(sizes.receives - (sizes.repost_batch - 1), messages);
      EXPECT_LE(sizes.receives, messages + ReceivePoolSizes::kReceiveSlack);
    }
    EXPECT_LE(ReceivePoolSizes::for_messages(messages, 1u << 20).receives,
              messages + ReceivePoolSizes::kMaxRepostBatch)
        << "large buffers are not made to spare";
    for (uint32_t depth : {1u, 2u, messages, messages + 1, 2 * messages, 1000u}) {
      const ReceivePoolSizes fixed = ReceivePoolSizes::of_depth(depth, messages);
      EXPECT_EQ(fixed.receives, depth);
      EXPECT_LE(fixed.repost_batch, depth) << "or consumed receives would never go back";
      if (depth > messages) {
        EXPECT_GE(depth - (fixed.repost_batch - 1), messages);
      }
    }
  }
}

TEST(ReceivePoolTest, RefusedPostIsAnError) {
  FakeQueue fake;
  fake.post_result = ENOMEM;
  ReceivePool<OwnReceiveQueue> pool({fake.queue_pair()}, {}, ReceivePoolSizes{2, 1});
  EXPECT_EQ(pool.post_all(), ENOMEM);
  EXPECT_EQ(pool.error().kind, ChannelError::Kind::kPost);
}

// --- what arrives by completions ---

class CompletionReceiverTest : public testing::Test {
 protected:
  static constexpr uint32_t kSlots = 4;
  static constexpr uint32_t kCapacity = 100;

  CompletionReceiverTest() : memory_(4096) {
    setup_.slots.count = kSlots;
    setup_.slots.shape = {kCapacity, 128};
    setup_.queue_pair = fake_.queue_pair();
    setup_.receive_completions = fake_.completions();
    setup_.buffers = {memory_.data(), kCapacity, 1};
    setup_.receives = {kSlots + 2, 1};
    receiver_ = CompletionReceiver<false>(setup_);
    EXPECT_EQ(receiver_.post_receives(), 0);
    fake_.receives.clear();
  }

  static ibv_wc message(uint64_t number, uint32_t slot, uint32_t bytes) {
    ibv_wc completion = FakeQueue::completion(number);
    completion.opcode = IBV_WC_RECV;
    completion.wc_flags = IBV_WC_WITH_IMM;
    const MessageImmediate names = {0, slot};
    completion.imm_data = htonl(names.immediate());
    completion.byte_len = bytes;
    return completion;
  }
  uint32_t poll() {
    return receiver_.poll(
        16, [this](uint32_t slot) { return waiting_.count(slot) != 0; },
        [this](uint32_t slot, const char* payload, uint32_t bytes) {
          waiting_.erase(slot);
          slots_.push_back(slot);
          offsets_.push_back(payload - memory_.data());
          sizes_.push_back(bytes);
        });
  }

  FakeQueue fake_;
  std::vector<char> memory_;
  ReceiverSetup setup_;
  CompletionReceiver<false> receiver_;
  std::set<uint32_t> waiting_ = {0, 1, 2, 3};
  std::vector<uint32_t> slots_;
  std::vector<ptrdiff_t> offsets_;
  std::vector<uint32_t> sizes_;
};

TEST_F(CompletionReceiverTest, TheTagTellsTheBufferAndTheImmediateTheSlot) {
  // Receives 5 and 0 were filled in this order, for slots 2 and 1.
  fake_.arrivals = {message(5, 2, 10), message(0, 1, 0)};
  EXPECT_EQ(poll(), 2u);
  EXPECT_EQ(slots_, (std::vector<uint32_t>{2, 1}));
  EXPECT_EQ(offsets_, (std::vector<ptrdiff_t>{5 * 128, 0}));
  EXPECT_EQ(sizes_, (std::vector<uint32_t>{10, 0}));
  EXPECT_TRUE(fake_.receives.empty()) << "the payload is still in use";
  receiver_.after_post(1);
  ASSERT_EQ(fake_.receives.size(), 1u);
  EXPECT_EQ(fake_.receives[0], std::vector<uint64_t>{0});
  receiver_.after_post(1);
  EXPECT_EQ(fake_.receives.size(), 1u) << "given back once";
}

TEST_F(CompletionReceiverTest, WhatNoPeerMayDoIsAViolation) {
  ibv_wc too_long = message(0, 0, kCapacity + 1);
  ibv_wc no_such_slot = message(0, kSlots, 1);
  ibv_wc without_slot = message(0, 0, 1);
  without_slot.wc_flags = 0;
  ibv_wc other_verb = message(0, 0, 1);
  other_verb.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
  for (const ibv_wc& arrival : {too_long, no_such_slot, without_slot, other_verb}) {
    receiver_ = CompletionReceiver<false>(setup_);
    fake_.arrivals = {arrival};
    EXPECT_EQ(poll(), 0u);
    EXPECT_EQ(receiver_.error().kind, ChannelError::Kind::kViolation);
  }
  receiver_ = CompletionReceiver<false>(setup_);
  waiting_.erase(3);
  fake_.arrivals = {message(0, 3, 1)};  // an answer that nobody waits for
  EXPECT_EQ(poll(), 0u);
  EXPECT_EQ(receiver_.error().kind, ChannelError::Kind::kViolation);
}

TEST_F(CompletionReceiverTest, FailedReceiveIsAnError) {
  fake_.arrivals = {FakeQueue::completion(0, IBV_WC_WR_FLUSH_ERR)};
  EXPECT_EQ(poll(), 0u);
  EXPECT_EQ(receiver_.error().completion, IBV_WC_WR_FLUSH_ERR);
}

TEST(SharedInboxTest, ACompletionStaysUntilItIsTaken) {
  FakeQueue fake;
  SharedInbox inbox(fake.shared_receives(), fake.completions(), {}, ReceivePoolSizes{4, 1});
  EXPECT_EQ(inbox.next(), nullptr);
  fake.arrivals = {FakeQueue::completion(3), FakeQueue::completion(1)};
  ASSERT_NE(inbox.next(), nullptr);
  EXPECT_EQ(inbox.next()->wr_id, 3u);
  EXPECT_EQ(inbox.next()->wr_id, 3u);
  EXPECT_TRUE(fake.receives.empty());
  inbox.take();
  ASSERT_EQ(fake.receives.size(), 1u);
  EXPECT_EQ(fake.receives[0], std::vector<uint64_t>{3});
  EXPECT_EQ(inbox.next()->wr_id, 1u);
  inbox.take();
  EXPECT_EQ(inbox.next(), nullptr);
}

}  // namespace
}  // namespace verbena::channel
