#include "src/bench/load/payload_pattern.h"

#include <gtest/gtest.h>

#include <vector>

#include "src/base/runtime.h"

namespace verbena::bench {
namespace {

TEST(PayloadPattern, EveryChangedByteIsNoticed) {
  for (size_t size : {1u, 7u, 8u, 9u, 64u, 100u}) {
    const PayloadPattern pattern(1, Direction::kRequest, 0, 0);
    std::vector<char> bytes(size);
    pattern.fill(bytes);
    ASSERT_TRUE(pattern.matches(bytes));
    for (size_t at = 0; at < size; ++at) {
      bytes[at] = static_cast<char>(bytes[at] ^ 1);
      EXPECT_FALSE(pattern.matches(bytes)) << "byte " << at << " of " << size;
      bytes[at] = static_cast<char>(bytes[at] ^ 1);
    }
  }
}

TEST(PayloadPattern, OtherMessagesDoNotPass) {
  std::vector<char> bytes(64);
  PayloadPattern(1, Direction::kRequest, 2, 3).fill(bytes);
  EXPECT_TRUE(PayloadPattern(1, Direction::kRequest, 2, 3).matches(bytes));
  EXPECT_FALSE(PayloadPattern(2, Direction::kRequest, 2, 3).matches(bytes));
  EXPECT_FALSE(PayloadPattern(1, Direction::kResponse, 2, 3).matches(bytes));
  EXPECT_FALSE(PayloadPattern(1, Direction::kRequest, 1, 3).matches(bytes));
  EXPECT_FALSE(PayloadPattern(1, Direction::kRequest, 2, 4).matches(bytes));
}

TEST(PayloadPattern, ShiftedMessagesDoNotPass) {
  std::vector<char> bytes(256);
  const PayloadPattern pattern(1, Direction::kResponse, 0, 0);
  pattern.fill(bytes);
  for (size_t shift = 1; shift <= 64; ++shift) {
    EXPECT_FALSE(pattern.matches(std::span(bytes).subspan(shift))) << shift;
  }
}

TEST(PayloadPattern, PartsOfALongOneMatchByTheirPlace) {
  Random random(run_seed());
  std::vector<char> bytes(4096);
  const PayloadPattern pattern(random.next(), Direction::kResponse, 0, 0);
  pattern.fill(bytes);
  for (int i = 0; i < 100; ++i) {
    const size_t first = random.below(bytes.size() / 8) * 8;
    const size_t size = random.below(bytes.size() - first + 1);
    EXPECT_TRUE(pattern.matches(std::span(bytes).subspan(first, size), first))
        << first << " " << size << ", seed " << run_seed();
  }
}

}  // namespace
}  // namespace verbena::bench
