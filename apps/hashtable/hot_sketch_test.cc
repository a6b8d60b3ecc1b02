#include "hashtable/hot_sketch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "src/base/runtime.h"

namespace verbena::hashtable {
namespace {

TEST(HotSketchTest, CountsNeverTooLittleBeforeItForgets) {
  HotSketch sketch(64);  // forgets after 1024 counts
  Random random(run_seed());
  const uint64_t hash = random.next();
  for (uint32_t i = 1; i <= 200; ++i) {
    EXPECT_GE(sketch.count(hash), i);
    sketch.count(random.next());
  }
}

TEST(HotSketchTest, FewKeysThatAreRareSeemToBeOften) {
  HotSketch sketch(4096);
  Random random(run_seed());
  uint32_t often = 0;
  for (uint32_t i = 0; i < 16'000; ++i) often += sketch.count(random.next()) >= 8 ? 1 : 0;
  EXPECT_LT(often, 160u);
}

TEST(HotSketchTest, ForgetsWhatIsNotCountedAnyMore) {
  HotSketch sketch(64);
  const uint64_t hash = 0x123456789abcdef0;
  for (uint32_t i = 0; i < 100; ++i) sketch.count(hash);
  // Each of these halves the count some times.
  for (uint64_t i = 0; i < 10'240; ++i) sketch.count(i % 1'024 * 0x9e3779b97f4a7c15);
  EXPECT_LT(sketch.count(hash), 60u);
}

TEST(HotSketchTest, SaturatesAndCanBeRaised) {
  HotSketch sketch(1'000);
  for (uint32_t i = 0; i < 1'000; ++i) EXPECT_LE(sketch.count(7), HotSketch::kMost);
  EXPECT_EQ(sketch.count(7), HotSketch::kMost);
  sketch.raise(8, 20);
  EXPECT_EQ(sketch.count(8), 21u);
  sketch.raise(8, 3);
  EXPECT_EQ(sketch.count(8), 22u);
}

}  // namespace
}  // namespace verbena::hashtable
