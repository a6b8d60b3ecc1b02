#include "src/bench/load/arrival_process.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "src/base/runtime.h"

namespace verbena::bench {
namespace {

std::vector<double> arrivals_of(ArrivalProcess process, int count) {
  std::vector<double> due;
  for (int i = 0; i < count; ++i) {
    due.push_back(process.due());
    process.advance();
  }
  return due;
}

TEST(ArrivalProcess, EvenOnesHaveEqualGapsFromTheFirst) {
  EXPECT_EQ(arrivals_of(ArrivalProcess(Arrivals::kEven, 100, 25, 1), 4),
            (std::vector<double>{25, 125, 225, 325}));
}

TEST(ArrivalProcess, PoissonHasTheRateAndTheSpreadOfExponentialGaps) {
  constexpr int kCount = 100'000;
  constexpr double kGap = 250;
  const std::vector<double> due =
      arrivals_of(ArrivalProcess(Arrivals::kPoisson, kGap, 0, run_seed()), kCount);
  double before = 0;
  double squares = 0;
  int longer = 0;
  for (const double at : due) {
    const double gap = at - before;
    EXPECT_GE(gap, 0);
    squares += gap * gap;
    if (gap > kGap) ++longer;
    before = at;
  }
  // Six standard deviations of each.
  EXPECT_NEAR(due.back() / kCount, kGap, 6 * kGap / std::sqrt(kCount));
  EXPECT_NEAR(squares / kCount / (2 * kGap * kGap), 1, 6 * std::sqrt(5.0 / kCount));
  EXPECT_NEAR(static_cast<double>(longer) / kCount, std::exp(-1), 6 * 0.5 / std::sqrt(kCount));
}

TEST(ArrivalProcess, ItsSeedDecides) {
  const auto of_seed = [](uint64_t seed) {
    return arrivals_of(ArrivalProcess(Arrivals::kPoisson, 10, 0, seed), 100);
  };
  EXPECT_EQ(of_seed(3), of_seed(3));
  EXPECT_NE(of_seed(3), of_seed(4));
}

}  // namespace
}  // namespace verbena::bench
