#include "src/base/tsc.h"

#include <gtest/gtest.h>

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

// A moment on the clock that lies between two of the counter. How far these are apart is no error:
// the thread may have lost its CPU in between.
struct Instant {
  static Instant now() {
    Instant instant{};
    instant.before = read_tsc_ordered();
    instant.ns = now_ns();
    instant.after = read_tsc_ordered();
    return instant;
  }
  uint64_t before;
  uint64_t ns;
  uint64_t after;
};

TEST(TscTest, AgreesWithTheClock) {
  if (!tsc_is_steady()) GTEST_SKIP() << "this machine's counter does not run at one rate";
  // The rate was measured in the same way, over 20 ms in which the thread may have waited, too:
  // only what every reading contradicts is an error.
  const Instant start = Instant::now();
  sleep_ns(30'000'000);
  const Instant end = Instant::now();
  const auto clock_ns = static_cast<double>(end.ns - start.ns);
  EXPECT_LT(tsc_to_ns(end.before - start.after), clock_ns * 1.001);
  EXPECT_GT(tsc_to_ns(end.after - start.before), clock_ns * 0.999);
}

TEST(TscTest, RateIsMeasuredOnce) {
  EXPECT_EQ(tsc_cycles_per_ns(), tsc_cycles_per_ns());
  EXPECT_GT(tsc_cycles_per_ns(), 0.1);
  EXPECT_LT(tsc_cycles_per_ns(), 10);
}

}  // namespace
}  // namespace verbena
