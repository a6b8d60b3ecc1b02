#include "src/calibrate/slice_watch.h"

#include <gtest/gtest.h>

namespace verbena::calibrate {
namespace {

constexpr uint64_t kMs = 1'000'000;

// Looks every 10 us while it has the CPU: for `slice_ns`, and then not for `gap_ns`.
std::optional<double> watch(uint64_t slice_ns, uint64_t gap_ns) {
  constexpr uint64_t kLookNs = 10'000;
  uint64_t now = 7 * kMs;
  SliceWatch slices(now);
  for (;;) {
    for (uint64_t had = 0; had < slice_ns; had += kLookNs) {
      if (!slices.look(now += kLookNs)) return slices.median_ns();
    }
    now += gap_ns;
  }
}

TEST(SliceWatch, SeesWhatLiesBetweenTheGaps) {
  EXPECT_NEAR(watch(1 * kMs, 1 * kMs).value_or(0), 1e6, 2e4);
  EXPECT_NEAR(watch(3 * kMs, 3 * kMs).value_or(0), 3e6, 2e4);
}

// What other programs take is no slice: a simulation with slices of 60 ms does not end.
TEST(SliceWatch, SeesThemWhereOthersHaveTheCpuMostOfTheTime) {
  EXPECT_NEAR(watch(3 * kMs, 100 * kMs).value_or(0), 3e6, 2e4);
}

TEST(SliceWatch, MeasuresNothingWhereItSeesNone) {
  EXPECT_EQ(watch(3'000 * kMs, 1 * kMs), std::nullopt) << "alone on its CPU";
  EXPECT_EQ(watch(1 * kMs, 3'000 * kMs), std::nullopt) << "away for longer than it waits";
}

}  // namespace
}  // namespace verbena::calibrate
