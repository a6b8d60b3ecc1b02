#include "src/bench/verbs/place_sequence.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace verbena::bench {
namespace {

TEST(PlaceSequence, InSequencePlacesFollowEachOtherAndBeginAnew) {
  // Three pieces fit; the rest of the region is never used.
  PlaceSequence places(AccessPattern::kSequential, 100, 32, 1);
  std::vector<uint64_t> found;
  for (int i = 0; i < 7; ++i) found.push_back(places.next());
  EXPECT_EQ(found, (std::vector<uint64_t>{0, 32, 64, 0, 32, 64, 0}));
}

TEST(PlaceSequence, APieceAsLargeAsTheRegionIsItsOnlyPlace) {
  for (const AccessPattern pattern : kAccessPatterns) {
    PlaceSequence places(pattern, 4096, 4096, 1);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(places.next(), 0u);
  }
}

TEST(PlaceSequence, AtRandomEveryPlaceComesAboutAsOften) {
  const uint64_t seed = run_seed();
  RecordProperty("seed", std::to_string(seed));
  SCOPED_TRACE(seed);
  constexpr uint64_t kPieces = 64;
  constexpr uint64_t kDraws = kPieces * 1000;
  PlaceSequence places(AccessPattern::kRandom, kPieces * 8 + 7, 8, seed);
  std::map<uint64_t, uint64_t> counts;
  for (uint64_t i = 0; i < kDraws; ++i) ++counts[places.next()];
  EXPECT_EQ(counts.size(), kPieces);
  for (const auto& [place, count] : counts) {
    EXPECT_EQ(place % 8, 0u);
    EXPECT_LT(place, kPieces * 8);
    // Ten standard deviations.
    EXPECT_NEAR(static_cast<double>(count), 1000, 320);
  }
}

TEST(PlaceSequence, TheSeedDecides) {
  const auto draw = [](uint64_t seed) {
    PlaceSequence places(AccessPattern::kRandom, 1 << 20, 8, seed);
    std::vector<uint64_t> found;
    for (int i = 0; i < 16; ++i) found.push_back(places.next());
    return found;
  };
  EXPECT_EQ(draw(7), draw(7));
  EXPECT_NE(draw(7), draw(8));
}

}  // namespace
}  // namespace verbena::bench
