// Many queue pairs that receive into one completion queue: whatever is polled first, each arrival
// is found, and none waits for ever behind a busy queue pair.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "src/base/runtime.h"
#include "src/device/soft/objects.h"
#include "src/device/verbs_for_test.h"

namespace verbena::soft {
namespace {

constexpr uint32_t kReceives = 128;  // of each queue pair

// Pairs of queue pairs, of which the second ones share a completion queue. The work request
// identifiers of their receives count from zero.
class ReadyBitsTest : public testing::Test {
 protected:
  struct Pair {
    std::unique_ptr<verbena::test::End> from;
    std::unique_ptr<verbena::test::End> to;
    uint64_t posted = 0;
    uint64_t taken = 0;
  };

  void add_pairs(uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) pairs_.push_back(make_pair());
  }
  Pair make_pair() {
    Pair pair{std::make_unique<verbena::test::End>(node_, verbena::test::EndOptions{}),
              std::make_unique<verbena::test::End>(
                  node_, verbena::test::EndOptions{.recv_cq = &cq_, .recv_depth = kReceives})};
    verbena::test::connect(*pair.from, *pair.to);
    for (uint32_t i = 0; i < kReceives; ++i) post_receive(pair);
    return pair;
  }
  void post_receive(Pair& pair) {
    ASSERT_EQ(verbena::test::post_receive(pair.to->qp(), pair.posted++, {buffer_.sge(0, 64)}), 0);
  }
  void send(Pair& pair) {
    ASSERT_EQ(verbena::test::post(pair.from->qp(), {.sges = {buffer_.sge(64, 8)},
                                                    .flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED}),
              0);
    ibv_wc wc;
    ASSERT_EQ(ibv_poll_cq(pair.from->cq(), 1, &wc), 1);
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
  }
  // Takes at most `most` completions, each of which must be its queue pair's next.
  int take(int most) {
    ibv_wc wc[32];
    const int taken = ibv_poll_cq(cq_.get(), most, wc);
    for (int i = 0; i < taken; ++i) {
      EXPECT_EQ(wc[i].status, IBV_WC_SUCCESS);
      for (Pair& pair : pairs_) {
        if (pair.to->qp()->qp_num != wc[i].qp_num) continue;
        EXPECT_EQ(wc[i].wr_id, pair.taken++);
        post_receive(pair);
        last_ = &pair;
      }
    }
    return taken;
  }
  bool bit(const Pair& pair) {
    const uint32_t at = as_qp(pair.to->qp()).ready_bit;
    return (inside().shared->ready_bits[at / 64].load() >> (at % 64) & 1) != 0;
  }
  Cq& inside() { return as_cq(cq_.get()); }

  verbena::test::Node node_;
  verbena::test::Buffer buffer_{node_, 4096};
  CompletionQueue cq_ =
      verbena::test::must(CompletionQueue::create(node_.device, {.depth_cqes = 4096}));
  std::vector<Pair> pairs_;
  Pair* last_ = nullptr;  // of which a completion was taken
};

TEST_F(ReadyBitsTest, TheBusyOneKeepsItsBit) {
  add_pairs(Cq::kScanned + 3);
  Pair& busy = pairs_[Cq::kScanned + 1];
  Pair& other = pairs_[Cq::kScanned + 2];
  ASSERT_NE(as_qp(busy.to->qp()).ready_bit, kNoReadyBit);
  for (int i = 0; i < 3; ++i) {
    send(busy);
    EXPECT_EQ(take(1), 1);
  }
  EXPECT_EQ(inside().recent, &as_qp(busy.to->qp()));
  EXPECT_EQ(take(1), 0);
  EXPECT_TRUE(bit(busy));

  // Until another is served; then its own arrivals are found by the bit again.
  send(other);
  EXPECT_EQ(take(1), 1);
  EXPECT_EQ(inside().recent, &as_qp(other.to->qp()));
  EXPECT_EQ(take(1), 0);
  EXPECT_FALSE(bit(busy));
  send(busy);
  EXPECT_EQ(take(1), 1);
  EXPECT_EQ(last_, &busy);
}

TEST_F(ReadyBitsTest, ABusyOneLetsOthersHaveTheirTurn) {
  add_pairs(Cq::kScanned + 2);
  Pair& busy = pairs_[Cq::kScanned];
  send(busy);
  ASSERT_EQ(take(1), 1);
  // One of those that are polled each time, and one with a bit.
  for (Pair* other : {&pairs_[0], &pairs_[Cq::kScanned + 1]}) {
    for (uint32_t i = 0; i < 3 * Cq::kMostInRow; ++i) send(busy);
    send(*other);
    uint32_t before = 0;
    while (take(1) == 1 && last_ != other) ++before;
    EXPECT_EQ(last_, other);
    EXPECT_LE(before, Cq::kMostInRow);
    while (take(1) == 1) {
    }
    EXPECT_EQ(busy.taken, busy.posted - kReceives);
    // It is the recent one again.
    send(busy);
    ASSERT_EQ(take(1), 1);
  }
}

// Who gets fewer completions than it asked for sleeps until an event: nothing may be left.
TEST_F(ReadyBitsTest, APollThatIsNotFilledHasLeftNothing) {
  add_pairs(Cq::kScanned + 3);
  for (int round = 0; round < 40; ++round) {
    int sent = 0;
    for (size_t i = 0; i < pairs_.size(); i += 1 + static_cast<size_t>(round) % 4, ++sent) {
      send(pairs_[i]);
    }
    EXPECT_EQ(take(32), sent) << round;
  }
}

TEST_F(ReadyBitsTest, OneThatIsDestroyedIsNotPolledAnyMore) {
  add_pairs(Cq::kScanned + 2);
  send(pairs_.back());
  EXPECT_EQ(take(1), 1);
  send(pairs_.back());
  ASSERT_EQ(inside().recent, &as_qp(pairs_.back().to->qp()));
  pairs_.pop_back();
  EXPECT_EQ(inside().recent, nullptr);
  EXPECT_EQ(take(1), 0);
  // One that gets its bit, which may be set.
  add_pairs(1);
  send(pairs_.back());
  EXPECT_EQ(take(1), 1);
  EXPECT_EQ(last_, &pairs_.back());
}

TEST_F(ReadyBitsTest, EveryArrivalIsFound) {
  add_pairs(3 * Cq::kScanned);
  std::mt19937 random(7);
  uint64_t sent = 0;
  uint64_t taken = 0;
  for (int round = 0; round < 2000; ++round) {
    // Some of one queue pair, as a busy one has them.
    Pair& pair = pairs_[random() % pairs_.size()];
    for (uint32_t i = random() % 24; i > 0 && sent - taken < kReceives; --i, ++sent) send(pair);
    for (uint32_t i = random() % 4; i > 0; --i)
      taken += static_cast<uint64_t>(take(1 + random() % 8));
  }
  for (int got = 1; got > 0; taken += static_cast<uint64_t>(got)) got = take(32);
  EXPECT_EQ(taken, sent);
}

// The sender sees a bit that the poll is about to clear.
TEST_F(ReadyBitsTest, NoArrivalIsLostBetweenTwoThreads) {
  add_pairs(Cq::kScanned + 2);
  constexpr uint64_t kSends = 20'000;
  std::atomic<uint64_t> taken{0};
  std::atomic<bool> gives_up{false};
  std::thread sender([&] {
    for (uint64_t i = 0; i < kSends; ++i) {
      // At most two under way, so that the receiver changes from one queue pair to the other.
      while (i - taken.load(std::memory_order_acquire) >= 2 && !gives_up.load()) cpu_relax();
      if (gives_up.load()) return;
      send(pairs_[Cq::kScanned + i / 3 % 2]);
    }
  });
  // A lost arrival is found by no poll, however many there are.
  uint64_t in_vain = 0;
  while (taken.load() < kSends && in_vain < 200'000'000) {
    const int got = take(1);
    in_vain = got == 0 ? in_vain + 1 : 0;
    taken.fetch_add(static_cast<uint64_t>(got), std::memory_order_release);
  }
  EXPECT_EQ(taken.load(), kSends);
  gives_up = true;
  sender.join();
}

}  // namespace
}  // namespace verbena::soft
