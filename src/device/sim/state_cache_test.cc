#include "src/device/sim/state_cache.h"

#include <gtest/gtest.h>

#include <vector>

namespace verbena::sim {
namespace {

// The share of misses when `members` are used in turn, after some rounds to begin with.
double state_miss_share(uint64_t capacity, uint64_t window, size_t members, uint64_t seed = 1) {
  StateCache cache;
  cache.configure(capacity, window);
  std::vector<CacheStamp> stamps(members);
  Random dice(seed);
  const auto round = [&] {
    for (CacheStamp& stamp : stamps) cache.touch(stamp, 1, dice);
  };
  for (uint64_t i = 0; i < 10'000; i += members) round();
  const uint64_t accesses = cache.accesses();
  const uint64_t misses = cache.misses();
  for (uint64_t i = 0; i < 100'000; i += members) round();
  return static_cast<double>(cache.misses() - misses) /
         static_cast<double>(cache.accesses() - accesses);
}

TEST(StateCacheTest, WhatFitsIsNeverMissed) {
  EXPECT_EQ(state_miss_share(64, 0, 64), 0);
  EXPECT_EQ(state_miss_share(64, 0, 1), 0);
}

TEST(StateCacheTest, OfTwiceWhatFitsHalfIsMissed) {
  EXPECT_NEAR(state_miss_share(64, 0, 128), 0.5, 0.02);
  EXPECT_NEAR(state_miss_share(1000, 0, 4000), 0.75, 0.02);
}

TEST(StateCacheTest, WhatWasUsedJustBeforeIsThere) {
  EXPECT_EQ(state_miss_share(16, 128, 128), 0);
  EXPECT_GT(state_miss_share(16, 127, 128), 0.8);
}

TEST(StateCacheTest, SizesCountNotMembers) {
  StateCache cache;
  cache.configure(64, 0);
  Random dice(1);
  std::vector<CacheStamp> stamps(16);
  for (int i = 0; i < 10'000; ++i) {
    for (CacheStamp& stamp : stamps) cache.touch(stamp, 8, dice);
  }
  EXPECT_NEAR(static_cast<double>(cache.misses()) / static_cast<double>(cache.accesses()), 0.5,
              0.02);
}

TEST(StateCacheTest, WhatIsNotUsedAnyMoreIsForgotten) {
  StateCache cache;
  cache.configure(64, 0);
  Random dice(1);
  std::vector<CacheStamp> stamps(128);
  for (int i = 0; i < 100; ++i) {
    for (CacheStamp& stamp : stamps) cache.touch(stamp, 1, dice);
  }
  EXPECT_GT(cache.misses(), 0u);
  const auto use_half = [&] {
    for (size_t i = 0; i < 32; ++i) cache.touch(stamps[i], 1, dice);
  };
  for (int i = 0; i < 1000; ++i) use_half();
  const uint64_t misses = cache.misses();
  for (int i = 0; i < 200; ++i) use_half();
  EXPECT_EQ(cache.misses(), misses);
}

}  // namespace
}  // namespace verbena::sim
