#include "src/device/sim/growing_ring.h"

#include <gtest/gtest.h>

namespace verbena::sim {
namespace {

TEST(GrowingRingTest, KeepsTheOrderWhileItGrowsAndTurns) {
  GrowingRing<int> ring;
  EXPECT_TRUE(ring.empty());
  int pushed = 0;
  int popped = 0;
  for (int round = 0; round < 50; ++round) {
    for (int i = 0; i < 5; ++i) ring.push_back(pushed++);
    for (int i = 0; i < 3; ++i) {
      ASSERT_EQ(ring.front(), popped++);
      ring.pop_front();
    }
    ASSERT_EQ(ring.size(), static_cast<uint32_t>(pushed - popped));
    for (uint32_t i = 0; i < ring.size(); ++i) {
      ASSERT_EQ(ring[i], popped + static_cast<int>(i));
    }
  }
}

TEST(GrowingRingTest, TruncatesFromTheEnd) {
  GrowingRing<int> ring;
  for (int i = 0; i < 10; ++i) ring.push_back(i);
  ring.pop_front();
  ring.truncate(2);
  EXPECT_EQ(ring.size(), 2u);
  ring.push_back(77);
  EXPECT_EQ(ring[0], 1);
  EXPECT_EQ(ring[1], 2);
  EXPECT_EQ(ring[2], 77);
}

}  // namespace
}  // namespace verbena::sim
