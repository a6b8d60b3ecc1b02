#include "src/memory/reuse_thresholds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "src/base/runtime.h"

namespace verbena {
namespace {

constexpr std::array kPaths = {ReusePath::kEagerWrite, ReusePath::kEagerSend, ReusePath::kOneSided};

// Inequality 3 says from where on the sums of equations 1 and 2, and of 4 and 5, are in favour.
TEST(ReuseThresholdsTest, TheLeastNumberIsWhereTheSumsCross) {
  Random random(run_seed());
  for (int i = 0; i < 5'000; ++i) {
    const ReuseCosts costs = {.registration_ns = double(random.below(100'000)),
                              .copy_ns = double(random.below(3'000)),
                              .overhead_ns = double(random.below(200)),
                              .transfer_ns = double(random.below(10'000))};
    const uint32_t least = least_reuses(costs);
    for (const ReusePath path : kPaths) {
      if (least == kNeverPays) {
        ASSERT_LE(costs.copy_ns, costs.overhead_ns);
        ASSERT_GE(in_place_ns(path, costs, 1'000'000), copied_ns(path, costs, 1'000'000));
        continue;
      }
      ASSERT_LT(in_place_ns(path, costs, least), copied_ns(path, costs, least));
      ASSERT_GE(in_place_ns(path, costs, least - 1), copied_ns(path, costs, least - 1));
    }
  }
}

TEST(ReuseThresholdsTest, ImprovementIsTheCopyWithoutTheOverhead) {
  EXPECT_DOUBLE_EQ(theoretical_improvement({.copy_ns = 1600, .overhead_ns = 100}, 10'000), 0.15);
  EXPECT_LT(theoretical_improvement({.copy_ns = 20, .overhead_ns = 100}, 10'000), 0);
}

TEST(ReuseThresholdsTest, ThePapersTableIsAsPrinted) {
  struct Row {
    uint32_t bytes;
    std::array<uint32_t, 3> least;
  };
  constexpr Row kRows[] = {
      {512, {432, 1568, 196}}, {1024, {200, 448, 128}}, {2048, {110, 224, 128}},
      {3072, {76, 131, 125}},  {4096, {60, 95, 56}},    {5120, {48, 75, 33}},
      {6144, {40, 65, 29}},    {7168, {36, 55, 26}},    {8192, {32, 49, 25}}};
  for (size_t path = 0; path < kPaths.size(); ++path) {
    const ReuseThresholds paper = ReuseThresholds::of_paper(kPaths[path]);
    for (const Row& row : kRows) EXPECT_EQ(paper.least_reuses(row.bytes), row.least[path]);
    EXPECT_EQ(paper.least_reuses(0), kNeverPays);
    EXPECT_EQ(paper.least_reuses(127), kNeverPays);
    EXPECT_EQ(paper.least_reuses(128), 4 * kRows[0].least[path]);
    EXPECT_EQ(paper.least_reuses(1u << 20), kRows[8].least[path]);
    for (uint32_t bytes = 129; bytes < 10'000; ++bytes) {
      ASSERT_LE(paper.least_reuses(bytes), paper.least_reuses(bytes - 1)) << bytes;
    }
  }
}

TEST(ReuseThresholdsTest, CostsBecomeThoseOfEachSize) {
  const ReuseCostModel costs = {.registration_ns = 50'000,
                                .registration_page_ns = 1'000,
                                .copy_ns = 50,
                                .copy_byte_ns = 0.25,
                                .overhead_ns = 100};
  const ReuseThresholds thresholds = ReuseThresholds::from_costs(costs, /*least_bytes=*/250);
  EXPECT_EQ(thresholds.least_reuses(128), kNeverPays);
  EXPECT_EQ(thresholds.least_reuses(192), kNeverPays) << "the copy costs less than the look-up";
  EXPECT_EQ(thresholds.least_reuses(249), kNeverPays);
  EXPECT_EQ(thresholds.least_reuses(256), 51'000u / 14 + 1);
  EXPECT_EQ(thresholds.least_reuses(4096), 51'000u / 974 + 1);
  EXPECT_EQ(thresholds.least_reuses(8192), 52'000u / 1998 + 1);
  EXPECT_EQ(thresholds.least_reuses(uint32_t{1} << 30), thresholds.least_reuses(1u << 16));
  EXPECT_EQ(ReuseThresholds().least_reuses(8192), kNeverPays);
}

}  // namespace
}  // namespace verbena
