#include "src/bench/message/message_collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace verbena::bench {
namespace {

using testing::ElementsAre;

TEST(BinomialPlace, SendsTheLargestHalfFirst) {
  const BinomialPlace root = binomial_place(0, 8);
  EXPECT_EQ(root.subtree, 8u);
  EXPECT_THAT(root.children, ElementsAre(BinomialPlace::Child{4, 4}, BinomialPlace::Child{2, 2},
                                         BinomialPlace::Child{1, 1}));
  const BinomialPlace middle = binomial_place(4, 7);
  EXPECT_EQ(middle.parent, 0u);
  EXPECT_EQ(middle.subtree, 3u);
  EXPECT_THAT(middle.children, ElementsAre(BinomialPlace::Child{6, 1}, BinomialPlace::Child{5, 1}));
}

TEST(BinomialPlace, ReachesEachRankOnceFromItsParent) {
  for (uint32_t size = 1; size <= 40; ++size) {
    std::set<uint32_t> reached = {0};
    for (uint32_t rank = 0; rank < size; ++rank) {
      const BinomialPlace place = binomial_place(rank, size);
      uint32_t subtree = 1;
      for (const BinomialPlace::Child& child : place.children) {
        EXPECT_TRUE(reached.insert(child.rank).second) << child.rank << " of " << size;
        const BinomialPlace below = binomial_place(child.rank, size);
        EXPECT_EQ(below.parent, rank);
        EXPECT_EQ(below.subtree, child.subtree);
        subtree += child.subtree;
      }
      EXPECT_EQ(subtree, place.subtree) << rank << " of " << size;
    }
    EXPECT_EQ(reached.size(), size);
  }
}

// Nobody is through before everybody has come: what a rank knows of spreads along the messages.
TEST(BarrierPlace, LetsNobodyThroughBeforeAllHaveCome) {
  for (uint32_t size = 1; size <= 33; ++size) {
    std::vector<BarrierPlace> places;
    std::vector<std::set<uint32_t>> known(size);
    for (uint32_t rank = 0; rank < size; ++rank) {
      places.push_back(barrier_place(rank, size));
      known[rank] = {rank};
    }
    for (uint32_t rank = 0; rank < size; ++rank) {
      if (!places[rank].is_proxied) continue;
      ASSERT_LT(places[rank].other, places[rank].core);
      ASSERT_TRUE(places[places[rank].other].is_proxy);
      ASSERT_EQ(places[places[rank].other].other, rank);
      known[places[rank].other].insert(rank);
    }
    for (size_t step = 0; (size_t{1} << step) < places[0].core; ++step) {
      const std::vector<std::set<uint32_t>> before = known;
      for (uint32_t rank = 0; rank < places[0].core; ++rank) {
        ASSERT_GT(places[rank].partners.size(), step);
        const uint32_t partner = places[rank].partners[step];
        ASSERT_EQ(places[partner].partners[step], rank);
        known[rank].insert(before[partner].begin(), before[partner].end());
      }
    }
    for (uint32_t rank = 0; rank < places[0].core; ++rank) EXPECT_EQ(known[rank].size(), size);
  }
}

TEST(BufferSequence, UsesBufferIOfASpectrumSoOften) {
  constexpr uint32_t kBuffers = 9;
  BufferSequence spectrum(kBuffers, BufferReuse::kSpectrum);
  std::vector<uint32_t> used(kBuffers);
  for (uint32_t i = 0; i < kBuffers * (kBuffers + 1) / 2; ++i) ++used[spectrum.next()];
  for (uint32_t number = 0; number < kBuffers; ++number) EXPECT_EQ(used[number], number + 1);
  // And again.
  EXPECT_EQ(spectrum.next(), 0u);
  BufferSequence cyclic(2, BufferReuse::kCyclic);
  EXPECT_EQ(cyclic.next(), 0u);
  EXPECT_EQ(cyclic.next(), 1u);
  EXPECT_EQ(cyclic.next(), 0u);
}

}  // namespace
}  // namespace verbena::bench
