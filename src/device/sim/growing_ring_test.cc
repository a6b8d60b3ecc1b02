#include "src/device/sim/growing_ring.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>

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

struct Large {
  uint64_t words[3];
};

// Those that are large have memory from the first one on, the others from the second one on.
template <typename T>
void expect_moved(uint32_t count, T (*make)(uint64_t), uint64_t (*value)(const T&)) {
  GrowingRing<T> from;
  for (uint64_t i = 0; i < count; ++i) from.push_back(make(i));
  GrowingRing<T> to = std::move(from);
  ASSERT_EQ(to.size(), count);
  for (uint32_t i = 0; i < count; ++i) ASSERT_EQ(value(to[i]), i);
  GrowingRing<T> other;
  other.push_back(make(77));
  other = std::move(to);
  ASSERT_EQ(other.size(), count);
  for (uint32_t i = 0; i < count; ++i) ASSERT_EQ(value(other[i]), i);
}

TEST(GrowingRingTest, MovesWithWhatIsThere) {
  for (const uint32_t count : {0u, 1u, 2u, 9u}) {
    expect_moved<uint64_t>(
        count, [](uint64_t i) { return i; }, [](const uint64_t& one) { return one; });
    expect_moved<Large>(
        count,
        [](uint64_t i) {
          return Large{{0, i, 0}};
        },
        [](const Large& one) { return one.words[1]; });
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
