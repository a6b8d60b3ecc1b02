#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "src/base/runtime.h"
#include "src/remote/region_for_test.h"
#include "src/remote/simulated_regions_for_test.h"
#include "verbena/remote_lock.h"
#include "verbena/remote_sequencer.h"

namespace verbena::remote {
namespace {

using testing::HasSubstr;

constexpr RemotePointer<uint64_t> kLock{.offset_bytes = 0};
constexpr RemotePointer<uint64_t> kGuarded{.offset_bytes = 64};
// Never over while a test runs.
constexpr uint64_t kLongNs = 3'600'000'000'000;

TEST(SpinlockTest, OneHasItAndTokensRise) {
  RegionForTest region;
  auto front_end = region.open();
  ASSERT_TRUE(front_end.region.ok());
  RemoteSpinlock first(*front_end, kLock, {.lease_ns = kLongNs});
  RemoteSpinlock second(*front_end, kLock, {.lease_ns = kLongNs});
  ASSERT_TRUE(*first.try_lock());
  EXPECT_EQ(first.token(), 1u);
  EXPECT_GT(first.lease_left_ns(), kLongNs / 2);
  EXPECT_FALSE(*second.try_lock());
  EXPECT_FALSE(second.is_held());
  EXPECT_EQ(second.lease_left_ns(), 0u);
  const Status late = second.lock(1'000'000);
  EXPECT_EQ(late.code(), StatusCode::kTimeout);
  EXPECT_THAT(late.message(), HasSubstr("not free within 1000 us, token 1 has it"));
  ASSERT_TRUE(first.renew().ok());
  EXPECT_EQ(first.token(), 2u);
  ASSERT_TRUE(first.unlock().ok());
  EXPECT_FALSE(first.is_held());
  ASSERT_TRUE(*second.try_lock()) << "also where another token was seen last";
  EXPECT_EQ(second.token(), 3u);
  EXPECT_EQ(second.statistics().acquisitions, 1u);
  EXPECT_EQ(second.statistics().takeovers, 0u);
  ASSERT_TRUE(second.unlock().ok());
}

TEST(SpinlockTest, ALeaseThatEndedIsTakenOver) {
  RegionForTest region;
  auto front_end = region.open();
  ASSERT_TRUE(front_end.region.ok());
  RemoteSpinlock dead(*front_end, kLock, {.lease_ns = 1'000'000});
  RemoteSpinlock next(*front_end, kLock, {.lease_ns = 1'000'000});
  ASSERT_TRUE(*dead.try_lock());
  ASSERT_TRUE(next.lock(-1).ok());
  EXPECT_EQ(dead.lease_left_ns(), 0u) << "who waits is later";
  EXPECT_EQ(next.token(), 2u);
  EXPECT_EQ(next.statistics().takeovers, 1u);
  const Status lost = dead.unlock();
  EXPECT_EQ(lost.code(), StatusCode::kTimeout);
  EXPECT_THAT(lost.message(), HasSubstr("the lease of 1000 us with token 1 ended"));
  EXPECT_EQ(dead.statistics().lost, 1u);
  ASSERT_TRUE(next.unlock().ok()) << "a lease that ended, and that nobody took over";
  ASSERT_TRUE(dead.lock(-1).ok());
  EXPECT_EQ(dead.token(), 3u);
  ASSERT_TRUE(next.lock(-1).ok());
  const Status renewed = dead.renew();
  EXPECT_EQ(renewed.code(), StatusCode::kTimeout);
  EXPECT_FALSE(dead.is_held());
}

TEST(SpinlockTest, TheMemorysErrorIsTold) {
  RegionForTest region({.size_bytes = 64, .writable = false});
  auto front_end = region.open();
  ASSERT_TRUE(front_end.region.ok());
  RemoteSpinlock lock(*front_end, kLock);
  EXPECT_EQ(lock.lock(-1).code(), StatusCode::kPermissionDenied);
  RemoteSpinlock outside(*front_end, {64});
  EXPECT_EQ(outside.try_lock().status().code(), StatusCode::kInvalidArgument);
}

// Such as "for ever": the end of the lease is beyond what a clock can tell.
TEST(SpinlockTest, AVeryLongLeaseDoesNotEnd) {
  for (const uint64_t lease_ns : {UINT64_MAX, UINT64_MAX / 65 * 64 + 64}) {
    uint64_t word = 0;
    LocalSpinlock first(word, {.lease_ns = lease_ns});
    LocalSpinlock second(word, {.lease_ns = lease_ns});
    ASSERT_TRUE(*first.try_lock());
    EXPECT_GT(first.lease_left_ns(), kLongNs);
    EXPECT_FALSE(*second.try_lock());
    EXPECT_EQ(second.lock(1'000'000).code(), StatusCode::kTimeout);
    EXPECT_EQ(second.statistics().takeovers, 0u);
    EXPECT_TRUE(first.unlock().ok());
  }
}

TEST(SpinlockTest, ThreadsOfAMachineExcludeEachOther) {
  constexpr uint32_t kThreads = 3;
  constexpr uint64_t kEach = 3000;
  for (const uint64_t backoff_most_ns : {uint64_t{0}, uint64_t{2000}}) {
    uint64_t word = 0;
    uint64_t guarded = 0;  // not atomic: the lock alone protects it
    std::vector<Thread> threads;
    for (uint32_t i = 0; i < kThreads; ++i) {
      threads.push_back(start_thread("locker", [&] {
        LocalSpinlock lock(word, {.lease_ns = kLongNs,
                                  .backoff_least_ns = backoff_most_ns / 4,
                                  .backoff_most_ns = backoff_most_ns});
        for (uint64_t n = 0; n < kEach; ++n) {
          ASSERT_TRUE(lock.lock(-1).ok());
          ++guarded;
          ASSERT_TRUE(lock.unlock().ok());
        }
      }));
    }
    threads.clear();
    EXPECT_EQ(guarded, kThreads * kEach);
    EXPECT_EQ(word, 2 * kThreads * kEach) << "a token for each acquisition, and free";
  }
}

TEST(SequencerTest, EachNumberIsGivenOnce) {
  RegionForTest region;
  auto front_end = region.open();
  ASSERT_TRUE(front_end.region.ok());
  RemoteSequencer remote(*front_end, {8});
  EXPECT_EQ(*remote.next(), 0u);
  EXPECT_EQ(*remote.next(10), 1u);
  ASSERT_EQ(remote.post_next(7, 5), PostResult::kPosted);
  Waiter waiter;
  uint64_t number = 0;
  while (front_end->poll([&](const RemoteCompletion& done) {
    EXPECT_EQ(done.token, 7u);
    number = done.value<uint64_t>();
  }) == 0) {
    waiter.idle();
  }
  EXPECT_EQ(number, 11u);
  EXPECT_EQ(*remote.next(), 16u);

  uint64_t word = 0;
  std::vector<std::vector<uint64_t>> found(3);
  std::vector<Thread> threads;
  for (auto& numbers : found) {
    threads.push_back(start_thread("caller", [&] {
      LocalSequencer local(word);
      for (int i = 0; i < 1000; ++i) numbers.push_back(local.next());
    }));
  }
  threads.clear();
  std::vector<uint64_t> all;
  for (const auto& numbers : found) all.insert(all.end(), numbers.begin(), numbers.end());
  std::sort(all.begin(), all.end());
  for (uint64_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], i);
}

// Front-ends increment a word that only the lock protects, while everything goes wrong. The lease
// is longer than the retries of the devices: so no WRITE arrives after its end.
TEST(SpinlockTest, FrontEndsExcludeEachOtherWhateverGoesWrong) {
  constexpr uint64_t kLeaseNs = 2'000'000'000;
  for (uint64_t seed = run_seed(); seed < run_seed() + 100; ++seed) {
    Random random(seed);
    const auto front_ends = 2 + static_cast<uint32_t>(random.below(4));
    const sim::FaultSchedule faults = draw_faults(random);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << front_ends << " front-ends; "
                                    << sim::describe(faults));
    const SpinlockOptions options{
        .lease_ns = kLeaseNs,
        .backoff_least_ns = random.below(2) * 1'000,
        .backoff_most_ns = faults.is_survivable() ? random.below(2) * 50'000 : kLeaseNs / 100};
    SimulatedRegions regions(seed, front_ends, 128, faults);
    struct Notes {
      uint64_t done = 0;     // increments that are acknowledged
      uint64_t started = 0;  // writes that were begun
      std::vector<uint64_t> tokens;
    };
    std::vector<Notes> notes(front_ends);
    ASSERT_TRUE(regions.run({}, [&](uint32_t number, RemoteRegion& region) {
      RemoteSpinlock lock(region, kLock, options);
      Notes& mine = notes[number];
      for (int i = 0; i < 10; ++i) {
        if (!lock.lock(-1).ok()) return;
        mine.tokens.push_back(lock.token());
        const Result<uint64_t> value = region.read(kGuarded);
        if (!value.ok()) return;
        ++mine.started;
        if (!region.write(kGuarded, *value + 1).ok()) return;
        ++mine.done;
        if (!lock.unlock().ok()) return;
      }
    })) << "a front-end hangs";
    uint64_t done = 0;
    uint64_t started = 0;
    std::vector<uint64_t> tokens;
    for (uint32_t i = 0; i < front_ends; ++i) {
      const Status& status = regions.status(i);
      EXPECT_TRUE(status.ok() || !faults.is_survivable()) << status.message();
      done += notes[i].done;
      started += notes[i].started;
      ASSERT_TRUE(std::is_sorted(notes[i].tokens.begin(), notes[i].tokens.end()));
      tokens.insert(tokens.end(), notes[i].tokens.begin(), notes[i].tokens.end());
    }
    const auto value = regions.at<uint64_t>(kGuarded.offset_bytes);
    if (!regions.back_end_crashed()) {
      ASSERT_GE(value, done);
      ASSERT_LE(value, started);
    }
    if (faults.is_survivable()) {
      ASSERT_EQ(done, 10 * front_ends);
    }
    std::sort(tokens.begin(), tokens.end());
    ASSERT_EQ(std::adjacent_find(tokens.begin(), tokens.end()), tokens.end());
  }
}

// With back-off, those that wait leave the word to the holder ("memsem" III-E, figure 10).
TEST(SpinlockTest, BackOffSparesAttempts) {
  std::vector<uint64_t> attempts;
  for (const uint64_t backoff_most_ns : {uint64_t{0}, uint64_t{64'000}}) {
    SimulatedRegions regions(1, 8, 128, {});
    attempts.push_back(0);
    ASSERT_TRUE(regions.run({}, [&](uint32_t, RemoteRegion& region) {
      RemoteSpinlock lock(region, kLock, {.lease_ns = kLongNs, .backoff_most_ns = backoff_most_ns});
      for (int i = 0; i < 50; ++i) {
        ASSERT_TRUE(lock.lock(-1).ok());
        ASSERT_TRUE(lock.unlock().ok());
      }
      attempts.back() += lock.statistics().attempts;
    }));
  }
  EXPECT_LT(attempts[1] * 2, attempts[0]);
}

}  // namespace
}  // namespace verbena::remote
