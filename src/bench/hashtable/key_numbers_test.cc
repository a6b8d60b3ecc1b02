#include "src/bench/hashtable/key_numbers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "src/bench/hashtable/keys.h"

namespace verbena::bench {
namespace {

TEST(ZipfRanks, ZetaIsTheSum) {
  double sum = 0;
  uint64_t summed = 0;
  for (const uint64_t count : {1u, 2u, 10u, 1000u, 1001u, 5000u, 1'000'000u}) {
    while (summed < count) sum += std::pow(static_cast<double>(++summed), -ZipfRanks::kTheta);
    EXPECT_NEAR(ZipfRanks::zeta(count), sum, 1e-9 * sum) << count;
  }
}

// Gray's method gives the first two ranks their exact shares, and the others nearly.
TEST(ZipfRanks, AreDrawnInTheirProportion) {
  constexpr uint32_t kDraws = 2'000'000;
  for (const uint64_t count : {1u, 2u, 3u, 100u, 100'000u}) {
    const ZipfRanks ranks(count);
    Random random(7);
    std::vector<uint32_t> drawn(count);
    for (uint32_t i = 0; i < kDraws; ++i) ++drawn.at(ranks.draw(random));
    const auto expected = [&](uint64_t rank) {
      return kDraws * std::pow(static_cast<double>(rank + 1), -ZipfRanks::kTheta) /
             ZipfRanks::zeta(count);
    };
    for (uint64_t rank = 0; rank < std::min<uint64_t>(count, 2); ++rank) {
      EXPECT_NEAR(drawn[rank], expected(rank), 5 * std::sqrt(expected(rank))) << count;
    }
    // Ranks from 2 on, a power of two at a time.
    for (uint64_t first = 2; first < count; first *= 2) {
      double sum = 0;
      double all = 0;
      for (uint64_t rank = first; rank < std::min(2 * first, count); ++rank) {
        sum += drawn[rank];
        all += expected(rank);
      }
      EXPECT_NEAR(sum, all, 0.2 * all) << count << " " << first;
    }
  }
}

TEST(ZipfRanks, GrowAsIfTheyHadBeenSoMany) {
  ZipfRanks grown(1);
  for (uint64_t count = 2; count <= 2000; ++count) grown.grow();
  const ZipfRanks made(2000);
  Random one(3);
  Random other(3);
  EXPECT_EQ(grown.count(), made.count());
  for (uint32_t i = 0; i < 10'000; ++i) ASSERT_EQ(grown.draw(one), made.draw(other));
}

TEST(KeyNumbers, StayBelowTheirNumber) {
  for (const KeyDistribution distribution : kKeyDistributions) {
    for (const uint64_t keys : {1u, 2u, 1000u}) {
      KeyNumbers numbers(distribution, keys, 2, 1, 5);
      for (uint32_t i = 0; i < 10'000; ++i) ASSERT_LT(numbers.next(), keys);
    }
  }
}

TEST(KeyNumbers, OfZipfianThePopularOnesAreSpread) {
  constexpr uint64_t kKeys = 10'000;
  KeyNumbers numbers(KeyDistribution::kZipfian, kKeys, 1, 0, 5);
  std::map<uint64_t, uint32_t> drawn;
  for (uint32_t i = 0; i < 100'000; ++i) ++drawn[numbers.next()];
  std::array<uint32_t, 4> quarters{};
  for (const auto& [number, count] : drawn) {
    if (count > 100) ++quarters[number * 4 / kKeys];
  }
  for (const uint32_t quarter : quarters) EXPECT_GT(quarter, 3u);
}

TEST(KeyNumbers, MostUsedOnesAreDrawnMost) {
  constexpr uint64_t kKeys = 10'000;
  constexpr uint64_t kMostUsed = kKeys / 4;
  constexpr uint32_t kDraws = 20'000;
  for (const KeyDistribution distribution : kKeyDistributions) {
    const std::vector<bool> used = most_used_keys(distribution, kKeys, kMostUsed);
    EXPECT_EQ(std::count(used.begin(), used.end(), true), kMostUsed);
    KeyNumbers numbers(distribution, kKeys, 1, 0, 5);
    uint32_t drawn = 0;
    for (uint32_t i = 0; i < kDraws; ++i) drawn += used[numbers.next()] ? 1 : 0;
    // The first quarter of 10,000 ranks has 86 %; scrambled, some keys have two ranks.
    const double share = distribution == KeyDistribution::kUniform   ? 0.25
                         : distribution == KeyDistribution::kZipfian ? 0.9
                                                                     : 0.86;
    EXPECT_NEAR(drawn, share * kDraws, 0.02 * kDraws) << key_distribution_name(distribution);
  }
  // Where scrambled ranks do not meet all keys.
  const std::vector<bool> most = most_used_keys(KeyDistribution::kZipfian, 100, 100);
  EXPECT_GT(std::count(most.begin(), most.end(), true), 50);
}

// New keys are drawn once they, and those before them, are in the table.
TEST(KeyNumbers, OfLatestTheNewestOneIsDrawnMost) {
  constexpr uint64_t kKeys = 100;
  KeyNumbers numbers(KeyDistribution::kLatest, kKeys, 3, 1, 5);
  const auto favourite = [&numbers] {
    std::map<uint64_t, uint32_t> drawn;
    for (uint32_t i = 0; i < 20'000; ++i) ++drawn[numbers.next()];
    std::pair<uint64_t, uint32_t> most;
    for (const auto& one : drawn) {
      if (one.second > most.second) most = one;
    }
    return most.first;
  };
  EXPECT_EQ(favourite(), 99u);
  std::vector<uint64_t> posted;
  for (uint32_t i = 0; i < KeyNumbers::kMostPending; ++i) {
    posted.push_back(numbers.next_new());
    numbers.posted();
  }
  EXPECT_EQ(posted[0], 101u);
  EXPECT_EQ(posted[1], 104u);
  numbers.inserted(posted[1]);
  EXPECT_EQ(numbers.inserted_count(), 0u);
  EXPECT_EQ(favourite(), 99u);
  numbers.inserted(posted[0]);
  EXPECT_EQ(numbers.inserted_count(), 2u);
  EXPECT_EQ(favourite(), 104u);
  for (uint32_t i = KeyNumbers::kMostPending; i-- > 2;) numbers.inserted(posted[i]);
  EXPECT_EQ(numbers.inserted_count(), KeyNumbers::kMostPending);
  EXPECT_EQ(favourite(), posted.back());
}

TEST(KeyText, IsPrintableAndOfEachNumberAnother) {
  KeyText text(16);
  std::set<std::string> keys;
  for (uint64_t number = 0; number < 10'000; ++number) {
    const std::string key(text.of(number));
    EXPECT_EQ(key.size(), 16u);
    for (const char letter : key) EXPECT_TRUE(letter > ' ' && letter <= 'z');
    EXPECT_TRUE(keys.insert(key).second) << number;
  }
}

TEST(DescribedValue, IsOfItsKeyAndOfOneVersion) {
  for (const size_t size : {16u, 17u, 64u, 100u, 1000u}) {
    SCOPED_TRACE(size);
    std::vector<char> value(size);
    DescribedValue::fill(value, 5, 7);
    EXPECT_TRUE(DescribedValue::matches(value, 5));
    EXPECT_FALSE(DescribedValue::matches(value, 6));
    EXPECT_FALSE(DescribedValue::matches(std::span(value).first(15), 5));
    std::vector<char> other(size);
    DescribedValue::fill(other, 5, 8);
    // Its first bytes of one version, the others of another one.
    for (size_t mixed = 1; mixed < size; ++mixed) {
      std::vector<char> torn = value;
      std::copy_n(other.begin(), mixed, torn.begin());
      if (torn == value || torn == other) continue;
      EXPECT_FALSE(DescribedValue::matches(torn, 5)) << mixed;
    }
  }
}

}  // namespace
}  // namespace verbena::bench
