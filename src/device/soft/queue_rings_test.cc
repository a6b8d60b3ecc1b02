// The rings behind queues, in memory of this process alone: completions, receives, waiting sends.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "src/device/soft/completion_ring.h"
#include "src/device/soft/objects.h"
#include "src/device/soft/receive_ring.h"
#include "src/device/soft/waiting_sends.h"
#include "src/device/verbs_for_test.h"

namespace verbena::soft {
namespace {

Completion completion_of(uint64_t id, Qp* qp = nullptr) {
  Completion completion{};
  completion.wr_id = id;
  completion.qp = qp;
  return completion;
}

TEST(CompletionRingTest, TakesItsCapacityWhateverItsPowerOfTwo) {
  for (const uint32_t capacity : {1u, 3u, 4u, 5u}) {
    CompletionRing ring;
    ring.configure(capacity);
    uint64_t pushed = 0;
    uint64_t taken = 0;
    for (int lap = 0; lap < 5; ++lap) {
      EXPECT_TRUE(ring.empty());
      for (uint32_t i = 0; i < capacity; ++i) {
        EXPECT_FALSE(ring.full());
        ring.push(completion_of(pushed++));
      }
      EXPECT_TRUE(ring.full());
      for (uint32_t i = 0; i < capacity; ++i) {
        EXPECT_EQ(ring.front().wr_id, taken++);
        ring.pop();
      }
    }
  }
}

TEST(CompletionRingTest, ForgetsOneQueuePairAndKeepsTheOrderOfTheOthers) {
  CompletionRing ring;
  ring.configure(6);
  Qp one;
  Qp other;
  for (uint64_t lap = 0; lap < 2; ++lap) {
    for (uint64_t i = 0; i < 6; ++i) ring.push(completion_of(i, i % 2 == 0 ? &one : &other));
    ring.forget(one);
    for (const uint64_t id : {1u, 3u, 5u}) {
      EXPECT_EQ(ring.front().wr_id, id);
      ring.pop();
    }
    EXPECT_TRUE(ring.empty());
  }
}

TEST(CompletionRingTest, KeepsWhatItHoldsWhenItIsResized) {
  CompletionRing ring;
  ring.configure(3);
  ring.push(completion_of(0));
  ring.pop();
  for (uint64_t id = 1; id <= 3; ++id) ring.push(completion_of(id));
  EXPECT_FALSE(ring.resize(2));
  EXPECT_TRUE(ring.full());
  ASSERT_TRUE(ring.resize(5));
  ring.push(completion_of(4));
  ring.push(completion_of(5));
  EXPECT_TRUE(ring.full());
  for (uint64_t id = 1; id <= 3; ++id, ring.pop()) EXPECT_EQ(ring.front().wr_id, id);
  ASSERT_TRUE(ring.resize(2));
  EXPECT_TRUE(ring.full());
  for (uint64_t id = 4; id <= 5; ++id, ring.pop()) EXPECT_EQ(ring.front().wr_id, id);
  EXPECT_TRUE(ring.empty());
}

class ReceiveRingTest : public testing::Test {
 protected:
  static constexpr uint32_t kDepth = 3;
  void SetUp() override {
    ring_.configure(kDepth, 4, 2, reinterpret_cast<std::byte*>(shown_), sizeof(SharedReceive));
  }
  void post(uint64_t id, uint32_t usable_bytes) {
    ring_.next_kept().wr_id = id;
    ring_.next_shown().length_bytes = usable_bytes;
    ring_.push(usable_bytes);
  }
  SharedReceive shown_[4] = {};
  ReceiveRing ring_;
};

TEST_F(ReceiveRingTest, ShowsWhatIsPublishedOnly) {
  post(1, 100);
  EXPECT_EQ(ring_.oldest(), nullptr);
  EXPECT_EQ(ring_.publish(), uint64_t{100} << 32 | 1);
  ASSERT_NE(ring_.oldest(), nullptr);
  EXPECT_EQ(ring_.oldest()->wr_id, 1u);
  EXPECT_EQ(shown_[0].length_bytes, 100u);
}

TEST_F(ReceiveRingTest, IsFullAtItsDepthAndCountsOn) {
  uint64_t posted = 0;
  uint64_t taken = 0;
  for (int lap = 0; lap < 5; ++lap) {
    while (!ring_.full()) post(posted++, 64);
    EXPECT_EQ(posted - taken, kDepth);
    EXPECT_EQ(static_cast<uint32_t>(ring_.publish()), posted);
    for (const PostedReceive* receive; (receive = ring_.oldest()) != nullptr;) {
      EXPECT_EQ(receive->wr_id, taken++);
      ring_.pop();
    }
    EXPECT_EQ(posted, taken);
  }
}

TEST_F(ReceiveRingTest, RemembersTheShortestUntilReset) {
  post(0, 100);
  post(1, 40);
  post(2, 70);
  EXPECT_EQ(ring_.publish() >> 32, 40u);
  ring_.reset();
  EXPECT_EQ(ring_.credits(), uint64_t{~0u} << 32);
  EXPECT_EQ(ring_.oldest(), nullptr);
  EXPECT_FALSE(ring_.full());
}

class WaitingSendsTest : public testing::Test {
 protected:
  static constexpr uint32_t kDepth = 4;
  void SetUp() override { sends_.configure(kDepth, 2, 16); }
  void push(uint32_t position) {
    char payload[8];
    memset(payload, static_cast<int>(position), sizeof(payload));
    ibv_sge entries[2] = {{reinterpret_cast<uint64_t>(payload), 4, 0},
                          {reinterpret_cast<uint64_t>(payload + 4), 4, 0}};
    ibv_send_wr wr{};
    wr.wr_id = position;
    wr.sg_list = entries;
    wr.num_sge = 2;
    wr.send_flags = IBV_SEND_INLINE;
    sends_.push(wr, position);
    memset(payload, 0, sizeof(payload));
  }
  WaitingSends sends_;
};

TEST_F(WaitingSendsTest, KeepsCopiesInTheirOrder) {
  uint32_t position = ~0u - 5;  // numbers of a send queue begin anew
  uint32_t expected = position;
  for (int lap = 0; lap < 3; ++lap) {
    for (uint32_t i = 0; i < kDepth; ++i) push(position++);
    EXPECT_EQ(sends_.count(), kDepth);
    while (!sends_.empty()) {
      const WaitingSend& first = sends_.front();
      EXPECT_EQ(first.position, expected);
      for (int i = 0; i < 2; ++i) {
        const auto* bytes = reinterpret_cast<const char*>(first.wr.sg_list[i].addr);
        EXPECT_EQ(*bytes, static_cast<char>(expected));
      }
      ++expected;
      sends_.pop();
    }
  }
}

TEST_F(WaitingSendsTest, HasNoMoreThanTheSendQueueAndNoGaps) {
  push(1);
  EXPECT_DEATH(push(3), "waiting_sends");
  for (uint32_t position = 2; position <= kDepth; ++position) push(position);
  EXPECT_DEATH(push(kDepth + 1), "waiting_sends");
  while (!sends_.empty()) sends_.pop();
  EXPECT_DEATH(sends_.pop(), "waiting_sends");
}

// The sanitizers look at each buffer that is shown to the sender.
TEST(SharedReceiveTest, HasAllBuffersThatAReceiveMayHave) {
  constexpr uint32_t kBytes = 20;
  const verbena::test::Node node;
  verbena::test::Buffer buffer(node, 4096);
  const SharedReceiveQueue shared = verbena::test::must(
      SharedReceiveQueue::create(node.domain, {.depth_wrs = 2, .max_sges = kMaxSges}));
  for (const SharedReceiveQueue* srq : {static_cast<const SharedReceiveQueue*>(nullptr), &shared}) {
    verbena::test::End a(node);
    verbena::test::End b(node, {.shared_receive_queue = srq, .max_sges = kMaxSges});
    verbena::test::connect(a, b);
    std::vector<ibv_sge> buffers;
    for (uint32_t i = 0; i < kMaxSges; ++i) {
      buffers.push_back(buffer.sge(1024 + 2 * i * kBytes, kBytes));
    }
    buffer.fill(7, 0, kMaxSges * kBytes);
    std::memset(buffer.data() + 1024, 0, 2048);
    ASSERT_EQ(srq != nullptr ? verbena::test::post_receive(srq->get(), 1, buffers)
                             : verbena::test::post_receive(b.qp(), 1, buffers),
              0);
    ASSERT_EQ(verbena::test::post(a.qp(), {.sges = {buffer.sge(0, kMaxSges * kBytes)}}), 0);
    ibv_wc wc{};
    ASSERT_EQ(ibv_poll_cq(b.cq(), 1, &wc), 1);
    EXPECT_EQ(wc.byte_len, kMaxSges * kBytes);
    for (uint32_t i = 0; i < kMaxSges; ++i) {
      EXPECT_EQ(std::memcmp(buffer.data() + 1024 + size_t{2} * i * kBytes,
                            buffer.data() + size_t{i} * kBytes, kBytes),
                0);
    }
  }
}

}  // namespace
}  // namespace verbena::soft
