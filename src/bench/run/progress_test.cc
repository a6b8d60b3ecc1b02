#include "src/bench/run/progress.h"

#include <gtest/gtest.h>

namespace verbena::bench {
namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;

TEST(Progress, EstimatesByWhatIsDone) {
  EXPECT_EQ(remaining_text(1, 4, 20 * kSecondNs), " 1:01 left");
  EXPECT_EQ(remaining_text(4, 4, 20 * kSecondNs), " 0:01 left");
}

TEST(Progress, HasNoEstimateFromTheFirstSteps) {
  EXPECT_EQ(remaining_text(0, 700, 0), "");
  EXPECT_EQ(remaining_text(2, 700, 20 * kSecondNs), "");
  EXPECT_NE(remaining_text(35, 700, 20 * kSecondNs), "");
}

TEST(Progress, StepsThatTakeLongWeighMore) {
  // Of 100 steps the first one has 900 of 999 parts: that it took 90 s leaves 10.
  EXPECT_EQ(remaining_text(900, 999, 90 * kSecondNs), " 0:10 left");
}

}  // namespace
}  // namespace verbena::bench
