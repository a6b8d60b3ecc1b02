#include "src/device/soft/owner_lock.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "src/base/runtime.h"

namespace verbena::soft {
namespace {

TEST(OwnerLockTest, OneThreadMayLockAgainAndAgain) {
  OwnerLock lock;
  for (int i = 0; i < 1000; ++i) {
    const OwnerLock::Guard guard(lock);
  }
}

// Whether the caller's next lock is the cheap one.
bool is_mine(OwnerLock& lock) { return OwnerLock::Guard(lock).as_owner(); }

TEST(OwnerLockTest, WhoLocksAgainAndAgainOwnsTheLock) {
  if (!asymmetric_fences || VERBENA_THREAD_SANITIZER) GTEST_SKIP() << "there are no owners here";
  OwnerLock lock;
  const auto lock_elsewhere = [&lock](uint32_t times) {
    start_thread("other", [&lock, times] {
      for (uint32_t i = 0; i < times; ++i) const OwnerLock::Guard guard(lock);
    }).join();
  };
  const auto locks_until_mine = [&lock] {
    uint32_t times = 0;
    while (times < 1u << 20 && !is_mine(lock)) ++times;
    return times;
  };
  lock_elsewhere(1);  // as the thread that sets an object up
  EXPECT_EQ(locks_until_mine(), OwnerLock::kFirstRun);
  EXPECT_TRUE(is_mine(lock));
  // Each further time takes longer.
  lock_elsewhere(1);
  EXPECT_FALSE(is_mine(lock));
  EXPECT_GT(locks_until_mine(), OwnerLock::kFirstRun);
  // Locks of somebody else in between begin the run anew.
  lock_elsewhere(1);
  for (int i = 0; i < 8; ++i) {
    for (uint32_t at = 0; at < OwnerLock::kFirstRun; ++at) EXPECT_FALSE(is_mine(lock));
    lock_elsewhere(1);
  }
}

// The counter is no atomic: lost additions show that two were inside.
TEST(OwnerLockTest, ThreadsExcludeEachOther) {
  constexpr int kThreads = 4;
  constexpr uint64_t kRounds = 50'000;
  OwnerLock lock;
  uint64_t count = 0;
  std::vector<Thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.push_back(start_thread("adder", [&] {
      for (uint64_t i = 0; i < kRounds; ++i) {
        const OwnerLock::Guard guard(lock);
        count = count + 1;
      }
    }));
  }
  threads.clear();
  EXPECT_EQ(count, kThreads * kRounds);
}

// The moment that matters is the one when the owner loses its privilege.
TEST(OwnerLockTest, TakingTheLockFromItsOwnerAtAnyMoment) {
  constexpr int kRounds = 1000;
  constexpr uint64_t kAdditions = 200;
  for (int round = 0; round < kRounds; ++round) {
    OwnerLock lock;
    uint64_t count = 0;
    std::atomic<bool> begun{false};
    Thread owner = start_thread("owner", [&] {
      for (uint64_t i = 0; i < kAdditions; ++i) {
        const OwnerLock::Guard guard(lock);
        count = count + 1;
        begun.store(true, std::memory_order_relaxed);
      }
    });
    Waiter waiter;
    while (!begun.load(std::memory_order_relaxed)) waiter.idle();
    for (uint64_t i = 0; i < kAdditions; ++i) {
      const OwnerLock::Guard guard(lock);
      count = count + 1;
    }
    owner.join();
    ASSERT_EQ(count, 2 * kAdditions) << "round " << round;
  }
}

// Ownership that comes back while others want the lock.
TEST(OwnerLockTest, ThreadsThatOwnInTurnExcludeEachOther) {
  constexpr int kThreads = 3;
  constexpr uint64_t kRounds = 40;
  OwnerLock lock;
  uint64_t count = 0;
  std::vector<Thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.push_back(start_thread("adder", [&] {
      for (uint64_t round = 0; round < kRounds; ++round) {
        for (uint64_t i = 0; i < 4 * OwnerLock::kFirstRun; ++i) {
          const OwnerLock::Guard guard(lock);
          count = count + 1;
        }
        sleep_ns(100'000);  // the others', for a run
      }
    }));
  }
  threads.clear();
  EXPECT_EQ(count, kThreads * kRounds * 4 * OwnerLock::kFirstRun);
}

// A later thread may get the same token as one that has ended.
TEST(OwnerLockTest, ALockOutlivesItsOwner) {
  OwnerLock lock;
  int count = 0;
  for (int i = 0; i < 50; ++i) {
    start_thread("owner", [&] {
      const OwnerLock::Guard guard(lock);
      ++count;
    }).join();
  }
  const OwnerLock::Guard guard(lock);
  EXPECT_EQ(count, 50);
}

}  // namespace
}  // namespace verbena::soft
