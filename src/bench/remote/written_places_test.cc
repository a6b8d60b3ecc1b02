#include "src/bench/remote/written_places.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace verbena::bench {
namespace {

TEST(WrittenPlacesTest, SequenceBeginsAnew) {
  WrittenPlaces places(WritePattern::kSequential, 3, 1);
  for (const uint64_t expected : {0u, 1u, 2u, 0u, 1u}) EXPECT_EQ(places.next(), expected);
}

TEST(WrittenPlacesTest, EveryPatternStaysInside) {
  for (const WritePattern pattern : kWritePatterns) {
    for (const uint64_t count : {1u, 2u, 7u, 4096u}) {
      WrittenPlaces places(pattern, count, 5);
      for (int i = 0; i < 10'000; ++i) ASSERT_LT(places.next(), count);
    }
  }
}

TEST(WrittenPlacesTest, AtRandomEachPlaceIsAsLikely) {
  WrittenPlaces places(WritePattern::kRandom, 16, 3);
  std::vector<uint64_t> drawn(16);
  for (int i = 0; i < 160'000; ++i) ++drawn[places.next()];
  for (const uint64_t count : drawn) EXPECT_NEAR(static_cast<double>(count), 10'000, 500);
}

// The shares are those of the distribution: 1 / (i + 1)^0.99 of the sum.
TEST(WrittenPlacesTest, ZipfDrawsByRank) {
  constexpr uint64_t kCount = 1000;
  constexpr int kDraws = 400'000;
  const ZipfNumbers numbers(kCount);
  Random random(7);
  std::vector<double> drawn(kCount);
  for (int i = 0; i < kDraws; ++i) ++drawn.at(numbers.draw(random));
  double sum = 0;
  for (uint64_t i = 1; i <= kCount; ++i) sum += std::pow(static_cast<double>(i), -0.99);
  for (const uint64_t rank : {0u, 1u, 2u, 9u, 99u}) {
    const double expected = kDraws * std::pow(static_cast<double>(rank + 1), -0.99) / sum;
    EXPECT_NEAR(drawn[rank], expected, 5 * std::sqrt(expected)) << "rank " << rank;
  }
  WrittenPlaces places(WritePattern::kZipf, kCount, 7);
  std::vector<uint64_t> used(kCount);
  for (int i = 0; i < 60'000; ++i) ++used[places.next()];
  EXPECT_GT(*std::max_element(used.begin(), used.end()), 60'000u / 10);
}

}  // namespace
}  // namespace verbena::bench
