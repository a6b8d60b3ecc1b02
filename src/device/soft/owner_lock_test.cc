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
