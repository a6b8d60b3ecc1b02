#include "src/base/silence_watch.h"

#include <gtest/gtest.h>

namespace verbena {
namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;

TEST(SilenceWatchTest, TellsWhenNothingMovesForTooLong) {
  SilenceWatch watch(3 * kSecondNs, 0);
  uint64_t now_ns = 0;
  for (int check = 0; check < 6; ++check) {
    EXPECT_FALSE(watch.too_long(now_ns += kSecondNs / 2, 0));
  }
  EXPECT_TRUE(watch.too_long(now_ns += kSecondNs / 2, 0));
  EXPECT_EQ(watch.silent_ns(), 7 * kSecondNs / 2);
}

TEST(SilenceWatchTest, ProgressBeginsAnew) {
  SilenceWatch watch(3 * kSecondNs, 0);
  uint64_t now_ns = 0;
  for (uint64_t progress = 0; progress < 100; ++progress) {
    for (int check = 0; check < 4; ++check) {
      EXPECT_FALSE(watch.too_long(now_ns += kSecondNs / 2, progress));
    }
  }
}

// A machine that was stopped for an hour: nobody could have moved.
TEST(SilenceWatchTest, APauseBetweenChecksCountsLittle) {
  SilenceWatch watch(3 * kSecondNs, 0);
  EXPECT_FALSE(watch.too_long(3600 * kSecondNs, 0));
  EXPECT_FALSE(watch.too_long(7200 * kSecondNs, 0));
  EXPECT_EQ(watch.silent_ns(), 2 * SilenceWatch::kMaxGapNs);
}

}  // namespace
}  // namespace verbena
