#include "src/device/sim/random_cache.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace verbena::sim {
namespace {

// The share of misses when `members` are used in turn, `burst` times each, after some rounds to
// begin with.
double miss_share(uint64_t capacity, size_t members, uint64_t burst = 1, uint64_t seed = 1) {
  RandomCache cache;
  cache.configure(capacity);
  std::vector<CachePlace> places(members);
  Random dice(seed);
  uint64_t accesses = 0;
  uint64_t misses = 0;
  const auto round = [&] {
    for (CachePlace& place : places) {
      for (uint64_t i = 0; i < burst; ++i, ++accesses) misses += cache.touch(place, dice) ? 0 : 1;
    }
  };
  for (uint64_t i = 0; i < 10'000; i += members) round();
  accesses = misses = 0;
  for (uint64_t i = 0; i < 200'000; i += members) round();
  return static_cast<double>(misses) / static_cast<double>(accesses);
}

TEST(RandomCacheTest, WhatFitsIsNeverMissed) {
  EXPECT_EQ(miss_share(64, 64), 0);
  EXPECT_EQ(miss_share(64, 1), 0);
}

TEST(RandomCacheTest, NothingFitsIntoNone) { EXPECT_EQ(miss_share(0, 4), 1); }

// Of `members` used in turn, one is still there with (1 - 1 / capacity) for every miss between two
// uses: p = 1 - exp(-p * members / capacity).
TEST(RandomCacheTest, MissesGrowWithTheActiveSet) {
  for (const auto& [members, ratio] : {std::pair{96, 1.5}, {128, 2.0}, {256, 4.0}}) {
    double expected = 1;
    for (int i = 0; i < 200; ++i) expected = 1 - std::exp(-expected * ratio);
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      EXPECT_NEAR(miss_share(64, members, 1, seed), expected, 0.05) << members << " seed " << seed;
    }
  }
}

TEST(RandomCacheTest, ABurstCostsOneMiss) {
  EXPECT_NEAR(miss_share(64, 256, 8), miss_share(64, 256) / 8, 0.02);
}

TEST(RandomCacheTest, WhatIsUsedBetweenMissesMayBeLostToo) {
  RandomCache cache;
  cache.configure(2);
  CachePlace kept;
  Random dice(1);
  cache.touch(kept, dice);
  uint64_t lost = 0;
  for (int i = 0; i < 1000; ++i) {
    CachePlace other;
    cache.touch(other, dice);
    lost += cache.touch(kept, dice) ? 0 : 1;
  }
  EXPECT_NEAR(static_cast<double>(lost), 500, 80);
}

}  // namespace
}  // namespace verbena::sim
