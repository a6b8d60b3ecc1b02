#include "src/bench/run/stream_seed.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>

#include "src/base/runtime.h"

namespace verbena::bench {
namespace {

// Each value once: with streams that are one, shifted, nearly all would come again.
TEST(StreamSeedTest, NoStreamHasAPartOfAnother) {
  constexpr int kDraws = 500;
  std::set<uint64_t> drawn;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    for (uint64_t number = 0; number < 40; ++number) {
      Random random(stream_seed(seed, number));
      for (int i = 0; i < kDraws; ++i) drawn.insert(random.next());
    }
  }
  EXPECT_EQ(drawn.size(), 3u * 40 * kDraws);
}

TEST(StreamSeedTest, IsTheSameAgain) {
  EXPECT_EQ(stream_seed(7, 3), stream_seed(7, 3));
  EXPECT_NE(stream_seed(7, 3), stream_seed(8, 3));
}

}  // namespace
}  // namespace verbena::bench
