// When a thread that polls in vain counts as one of a crowd, when it may sleep, and what wakes it:
// by given times and numbers, so that the machine's load decides nothing.
#include "src/device/soft/poll_pause.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "src/base/runtime.h"
#include "src/device/soft/crowd_watch.h"

namespace verbena::soft {
namespace {

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kTightPollsNs = 2'000;  // between two polls of one that is never away

// A thread that polls as pause_in_poll() makes it, in a kernel that counts `switches`.
class Poller {
 public:
  explicit Poller(uint64_t start_ns) : now_ns_(start_ns) {}
  uint64_t now_ns() const { return now_ns_; }
  uint32_t asked() const { return asked_; }
  bool crowded() const { return watch_.crowded(now_ns_); }

  void poll_after(uint64_t gap_ns) {
    now_ns_ += gap_ns;
    if (!watch_.suspects(now_ns_)) return;
    ++asked_;
    watch_.count(now_ns_, switches_);
  }
  void poll_for(uint64_t duration_ns) {
    for (const uint64_t end_ns = now_ns_ + duration_ns; now_ns_ < end_ns;)
      poll_after(kTightPollsNs);
  }
  // Another thread gets the CPU for a time slice.
  void lose_cpu_for(uint64_t duration_ns) {
    ++switches_;
    poll_after(duration_ns);
  }

 private:
  CrowdWatch watch_;
  uint64_t now_ns_;
  uint64_t switches_ = 7;
  uint32_t asked_ = 0;
};

TEST(CrowdWatchTest, AloneOnItsCpuAsksTheKernelOnce) {
  Poller poller(5'000 * kMs);
  poller.poll_for(1'000 * kMs);
  EXPECT_EQ(poller.asked(), 1u);
  EXPECT_FALSE(poller.crowded());
}

TEST(CrowdWatchTest, ShortAbsencesAreNoEvidence) {
  Poller poller(5'000 * kMs);
  poller.poll_for(kMs);
  for (int i = 0; i < 1'000; ++i) {
    poller.lose_cpu_for(CrowdWatch::kGapNs - 1);  // the kernel's own threads
    ASSERT_FALSE(poller.crowded()) << i;
  }
  EXPECT_EQ(poller.asked(), 1u);
}

TEST(CrowdWatchTest, OneWhoPollsSeldomIsNotInACrowd) {
  Poller poller(5'000 * kMs);
  for (int i = 0; i < 1'000; ++i) {
    poller.poll_after(10 * kMs);  // of its own accord: the kernel counts nothing
    ASSERT_FALSE(poller.crowded()) << i;
  }
}

TEST(CrowdWatchTest, OneLossInAWhileIsNoCrowd) {
  Poller poller(5'000 * kMs);
  poller.poll_for(kMs);
  for (int i = 0; i < 20; ++i) {
    poller.lose_cpu_for(3 * kMs);
    ASSERT_FALSE(poller.crowded()) << i;
    poller.poll_for(CrowdWatch::kBetweenLossesNs);
  }
}

TEST(CrowdWatchTest, TwoTimeSlicesMakeACrowdThatIsForgotten) {
  Poller poller(5'000 * kMs);
  poller.poll_for(4 * kMs);
  poller.lose_cpu_for(4 * kMs);
  EXPECT_FALSE(poller.crowded());
  poller.poll_for(4 * kMs);
  poller.lose_cpu_for(4 * kMs);
  EXPECT_TRUE(poller.crowded());
  poller.poll_for(CrowdWatch::kShortestCrowdNs - kMs);
  EXPECT_TRUE(poller.crowded());
  poller.poll_for(2 * kMs);
  EXPECT_FALSE(poller.crowded());
}

TEST(CrowdWatchTest, ACrowdThatStaysIsBelievedInForLongerButNotForEver) {
  Poller poller(5'000 * kMs);
  poller.poll_for(kMs);
  poller.lose_cpu_for(4 * kMs);
  poller.lose_cpu_for(4 * kMs);
  uint64_t believed_ns = 0;
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(poller.crowded());
    const uint64_t start_ns = poller.now_ns();
    while (poller.crowded()) poller.poll_after(kTightPollsNs);
    believed_ns = poller.now_ns() - start_ns;
    poller.poll_for(4 * kMs);
    poller.lose_cpu_for(4 * kMs);  // one is enough, so soon after
  }
  EXPECT_GE(believed_ns, CrowdWatch::kLongestCrowdNs);
  EXPECT_LE(believed_ns, CrowdWatch::kLongestCrowdNs + kTightPollsNs);
  // It goes in the end, and the next one begins anew.
  while (poller.crowded()) poller.poll_after(kTightPollsNs);
  poller.poll_for(2 * CrowdWatch::kBetweenLossesNs);
  poller.lose_cpu_for(4 * kMs);
  EXPECT_FALSE(poller.crowded());
  poller.lose_cpu_for(4 * kMs);
  ASSERT_TRUE(poller.crowded());
  poller.poll_for(CrowdWatch::kShortestCrowdNs + kMs);
  EXPECT_FALSE(poller.crowded());
}

TEST(CrowdWatchTest, LossesInACrowdKeepIt) {
  Poller poller(5'000 * kMs);
  poller.poll_for(kMs);
  poller.lose_cpu_for(4 * kMs);
  poller.lose_cpu_for(4 * kMs);
  for (int i = 0; i < 100; ++i) {
    poller.poll_for(CrowdWatch::kShortestCrowdNs / 2);
    poller.lose_cpu_for(4 * kMs);
    ASSERT_TRUE(poller.crowded()) << i;
  }
}

TEST(PollRoundTest, EndsWhereItBegan) {
  PollRound round;
  const int queues[3] = {};
  using Step = PollRound::Step;
  EXPECT_EQ(round.polled(&queues[0], false), Step::kBegins);
  EXPECT_EQ(round.polled(&queues[1], false), Step::kGoesOn);
  EXPECT_EQ(round.polled(&queues[2], false), Step::kGoesOn);
  EXPECT_EQ(round.polled(&queues[0], false), Step::kEnds);
  EXPECT_EQ(round.polled(&queues[1], false), Step::kGoesOn);
  EXPECT_EQ(round.polled(&queues[2], true), Step::kBegins);
  EXPECT_EQ(round.polled(&queues[0], false), Step::kGoesOn);
  EXPECT_EQ(round.polled(&queues[2], false), Step::kEnds);
}

TEST(PollRoundTest, AQueueThatIsPolledNoMoreIsForgotten) {
  PollRound round;
  const int queues[2] = {};
  EXPECT_EQ(round.polled(&queues[0], false), PollRound::Step::kBegins);
  uint32_t polls = 1;
  while (round.polled(&queues[1], false) != PollRound::Step::kBegins) ASSERT_LT(++polls, 10'000u);
  EXPECT_EQ(round.polled(&queues[1], false), PollRound::Step::kEnds);
}

TEST(PauseBudgetTest, PausesInVainEndForAWhile) {
  PauseBudget budget;
  uint64_t now_ns = 5'000 * kMs;
  for (uint64_t rest_ns = PauseBudget::kShortestRestNs;;
       rest_ns = std::min(2 * rest_ns, PauseBudget::kLongestRestNs)) {
    for (uint32_t i = 0; i < PauseBudget::kMostInVain; ++i) {
      ASSERT_TRUE(budget.allows(now_ns));
      budget.note_pause(now_ns, false);
    }
    EXPECT_FALSE(budget.allows(now_ns));
    EXPECT_FALSE(budget.allows(now_ns + rest_ns - 1));
    EXPECT_TRUE(budget.allows(now_ns + rest_ns));
    now_ns += rest_ns;
    if (now_ns > 6'000 * kMs) break;
  }
  // One that helped, and all is as at first.
  budget.note_pause(now_ns, true);
  for (uint32_t i = 0; i < PauseBudget::kMostInVain; ++i) budget.note_pause(now_ns, false);
  EXPECT_FALSE(budget.allows(now_ns));
  EXPECT_TRUE(budget.allows(now_ns + PauseBudget::kShortestRestNs));
}

TEST(PauseBudgetTest, PausesThatHelpGoOn) {
  PauseBudget budget;
  for (uint64_t now_ns = kMs; now_ns < 1'000 * kMs; now_ns += kMs) {
    for (uint32_t i = 1; i < PauseBudget::kMostInVain; ++i) budget.note_pause(now_ns, false);
    budget.note_pause(now_ns, true);
    ASSERT_TRUE(budget.allows(now_ns));
  }
}

// So long that the test fails by its limit if nobody wakes the sleeper.
constexpr uint64_t kForEverNs = 100'000 * 1'000'000'000ull;

TEST(PollSleeperTest, DoesNotSleepAfterADelivery) {
  PollSleeper sleeper;
  sleeper.arm();
  EXPECT_TRUE(sleeper.armed());
  EXPECT_FALSE(sleeper.delivered());
  EXPECT_FALSE(sleeper.armed());
  EXPECT_TRUE(sleeper.wait(kForEverNs));
}

TEST(PollSleeperTest, DoesNotSleepUnlessItIsArmed) {
  PollSleeper sleeper;
  sleeper.wait(kForEverNs);
  sleeper.arm();
  sleeper.disarm();
  sleeper.wait(kForEverNs);
}

TEST(PollSleeperTest, ADeliveryWakesIt) {
  PollSleeper sleeper;
  for (int i = 0; i < 100; ++i) {
    sleeper.arm();
    Thread thread = start_thread("sleeper", [&] { EXPECT_TRUE(sleeper.wait(kForEverNs)); });
    while (!sleeper.asleep()) sleep_ns(10'000);
    EXPECT_TRUE(sleeper.delivered());
    thread.join();
    EXPECT_FALSE(sleeper.asleep());
    EXPECT_FALSE(sleeper.delivered());
  }
}

TEST(PollSleeperTest, WakesByItselfWhereNobodyDelivers) {
  PollSleeper sleeper;
  sleeper.arm();
  EXPECT_FALSE(sleeper.wait(1'000));
  EXPECT_FALSE(sleeper.asleep());
  EXPECT_FALSE(sleeper.armed());
}

// One that arms and polls again, and one that delivers and then polls for the sleeper, never miss
// each other: then this would not end.
TEST(PollSleeperTest, NoDeliveryIsMissed) {
  PollSleeper sleeper;
  constexpr uint32_t kDeliveries = 20'000;
  std::atomic<uint32_t> delivered{0};
  std::atomic<uint32_t> seen{0};
  Thread deliverer = start_thread("deliverer", [&] {
    for (uint32_t i = 1; i <= kDeliveries; ++i) {
      delivered.store(i, std::memory_order_release);
      sleeper.delivered();
      Waiter waiter;
      while (seen.load(std::memory_order_acquire) != i) waiter.idle();
    }
  });
  for (uint32_t i = 1; i <= kDeliveries; ++i) {
    while (delivered.load(std::memory_order_acquire) < i) {
      sleeper.arm();
      if (delivered.load(std::memory_order_acquire) < i) sleeper.wait(kForEverNs);
    }
    seen.store(i, std::memory_order_release);
  }
  deliverer.join();
}

}  // namespace
}  // namespace verbena::soft
