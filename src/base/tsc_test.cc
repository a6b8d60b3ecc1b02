#include "src/base/tsc.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace verbena {
namespace {

TEST(TscTest, NeverRunsBackwards) {
  uint64_t before = read_tsc();
  for (int i = 0; i < 100'000; ++i) {
    const uint64_t now = read_tsc_ordered();
    ASSERT_GE(now, before);
    before = now;
  }
}

TEST(TscTest, AgreesWithTheClock) {
  if (!tsc_is_steady()) GTEST_SKIP() << "this machine's counter does not run at one rate";
  // Of a few tries the best: a thread can lose its CPU between the two readings.
  double best_error = 1;
  for (int i = 0; i < 5 && best_error > 0.001; ++i) {
    const uint64_t start_ns = now_ns();
    const uint64_t start = read_tsc_ordered();
    sleep_ns(30'000'000);
    const uint64_t end_ns = now_ns();
    const uint64_t end = read_tsc_ordered();
    const double clock_ns = static_cast<double>(end_ns - start_ns);
    best_error = std::min(best_error, std::abs(tsc_to_ns(end - start) / clock_ns - 1));
  }
  EXPECT_LT(best_error, 0.001);
}

TEST(TscTest, RateIsMeasuredOnce) {
  EXPECT_EQ(tsc_cycles_per_ns(), tsc_cycles_per_ns());
  EXPECT_GT(tsc_cycles_per_ns(), 0.1);
  EXPECT_LT(tsc_cycles_per_ns(), 10);
}

}  // namespace
}  // namespace verbena
