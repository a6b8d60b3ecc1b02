#include "src/bench/result/statistics.h"

#include <gtest/gtest.h>

#include <vector>

namespace verbena::bench {
namespace {

TEST(Statistics, MedianAndSpread) {
  const Summary odd = summarize(std::vector<double>{5, 1, 3});
  EXPECT_EQ(odd.median, 3);
  EXPECT_EQ(odd.min, 1);
  EXPECT_EQ(odd.max, 5);
  EXPECT_EQ(median(std::vector<double>{4, 1, 3, 2}), 2.5);
  EXPECT_EQ(median(std::vector<double>{7}), 7);
}

TEST(Statistics, OneDisturbedRunDoesNotMoveTheMedian) {
  EXPECT_EQ(median(std::vector<double>{100, 101, 1e9}), 101);
}

TEST(Statistics, MeanAndDeviation) {
  const double values[] = {2, 4, 4, 4, 5, 5, 7, 9};
  EXPECT_DOUBLE_EQ(summarize(values).mean, 5);
  EXPECT_NEAR(summarize(values).deviation, 2.13809, 1e-5);
  const double one[] = {3};
  EXPECT_DOUBLE_EQ(summarize(one).mean, 3);
  EXPECT_DOUBLE_EQ(summarize(one).deviation, 0);
  EXPECT_TRUE(summarize(values).has_spread());
  EXPECT_FALSE(summarize(one).has_spread());
}

}  // namespace
}  // namespace verbena::bench
