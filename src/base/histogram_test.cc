#include "src/base/histogram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <tuple>
#include <vector>

#include "src/base/runtime.h"

namespace verbena {
namespace {

TEST(HistogramTest, AnEmptyOneIsAllZeros) {
  const Histogram histogram;
  EXPECT_EQ(histogram.count(), 0u);
  EXPECT_EQ(histogram.min(), 0u);
  EXPECT_EQ(histogram.max(), 0u);
  EXPECT_EQ(histogram.mean(), 0);
  EXPECT_EQ(histogram.quantile(0.5), 0u);
}

TEST(HistogramTest, EveryValueLiesInItsBucket) {
  size_t previous = 0;
  for (uint64_t value = 0; value < 100'000; ++value) {
    const size_t bucket = Histogram::bucket_of(value);
    ASSERT_LE(Histogram::first_of(bucket), value);
    ASSERT_GE(Histogram::last_of(bucket), value);
    // No bucket is left out and none comes twice.
    ASSERT_TRUE(bucket == previous || bucket == previous + 1) << value;
    previous = bucket;
  }
  for (unsigned bit = 0; bit < 64; ++bit) {
    for (uint64_t value :
         {(uint64_t{1} << bit) - 1, uint64_t{1} << bit, (uint64_t{1} << bit) + 1}) {
      const size_t bucket = Histogram::bucket_of(value);
      ASSERT_LT(bucket, Histogram::kBuckets);
      ASSERT_LE(Histogram::first_of(bucket), value);
      ASSERT_GE(Histogram::last_of(bucket), value);
    }
  }
  EXPECT_EQ(Histogram::bucket_of(UINT64_MAX), Histogram::kBuckets - 1);
}

TEST(HistogramTest, BucketsJoinWithoutGapsAndAreNarrow) {
  for (size_t bucket = 0; bucket + 1 < Histogram::kBuckets; ++bucket) {
    const uint64_t first = Histogram::first_of(bucket);
    const uint64_t last = Histogram::last_of(bucket);
    ASSERT_EQ(last + 1, Histogram::first_of(bucket + 1));
    ASSERT_EQ(Histogram::bucket_of(first), bucket);
    ASSERT_EQ(Histogram::bucket_of(last), bucket);
    ASSERT_LE(last - first, first / 128);
  }
}

TEST(HistogramTest, SmallValuesAreExact) {
  Histogram histogram;
  for (uint64_t value = 1; value <= 100; ++value) histogram.record(value);
  EXPECT_EQ(histogram.count(), 100u);
  EXPECT_EQ(histogram.min(), 1u);
  EXPECT_EQ(histogram.max(), 100u);
  EXPECT_DOUBLE_EQ(histogram.mean(), 50.5);
  EXPECT_EQ(histogram.quantile(0), 1u);
  EXPECT_EQ(histogram.quantile(0.01), 1u);
  EXPECT_EQ(histogram.quantile(0.5), 50u);
  EXPECT_EQ(histogram.quantile(0.99), 99u);
  EXPECT_EQ(histogram.quantile(0.999), 100u);
  EXPECT_EQ(histogram.quantile(1), 100u);
  EXPECT_EQ(histogram.quantile(std::nan("")), 1u);
}

TEST(HistogramTest, QuantilesAreWithinOnePercentOfSortedValues) {
  const uint64_t seed = run_seed();
  SCOPED_TRACE("VERBENA_SEED=" + std::to_string(seed));
  Random random(seed);
  for (int round = 0; round < 20; ++round) {
    Histogram histogram;
    std::vector<uint64_t> values;
    const size_t count = 1 + random.below(5000);
    // From nanoseconds to minutes, every magnitude alike.
    for (size_t i = 0; i < count; ++i) {
      const uint64_t value = random.below(uint64_t{1} << (1 + random.below(38)));
      values.push_back(value);
      histogram.record(value);
    }
    std::sort(values.begin(), values.end());
    for (double q : {0.0, 0.001, 0.1, 0.25, 0.5, 0.9, 0.99, 0.999, 0.9999, 1.0}) {
      const auto rank = static_cast<size_t>(std::ceil(q * static_cast<double>(count) - 1e-6));
      const auto exact = static_cast<double>(values[rank == 0 ? 0 : rank - 1]);
      EXPECT_NEAR(static_cast<double>(histogram.quantile(q)), exact, exact * 0.01)
          << "q " << q << " of " << count;
    }
  }
}

TEST(HistogramTest, ValuesBeyondTheRangeCountInTheLastBucket) {
  Histogram histogram;
  histogram.record(UINT64_MAX);
  histogram.record(5);
  EXPECT_EQ(histogram.max(), UINT64_MAX);
  EXPECT_EQ(histogram.quantile(1), UINT64_MAX);
  EXPECT_EQ(histogram.quantile(0.5), 5u);
}

TEST(HistogramTest, MergingIsAsRecordingAllInOne) {
  const uint64_t seed = run_seed();
  SCOPED_TRACE("VERBENA_SEED=" + std::to_string(seed));
  Random random(seed);
  Histogram all;
  Histogram parts[3];
  for (int i = 0; i < 3000; ++i) {
    const uint64_t value = random.below(1'000'000);
    all.record(value);
    parts[random.below(2)].record(value);
  }
  Histogram merged;
  for (const Histogram& part : parts) merged.merge(part);  // the third one is empty
  EXPECT_EQ(merged.count(), all.count());
  EXPECT_EQ(merged.min(), all.min());
  EXPECT_EQ(merged.max(), all.max());
  EXPECT_NEAR(merged.mean(), all.mean(), 1e-6 * all.mean());
  for (double q : {0.1, 0.5, 0.9, 0.99}) EXPECT_EQ(merged.quantile(q), all.quantile(q));
}

TEST(HistogramTest, RecordsAValueSeveralTimesAtOnce) {
  Histogram histogram;
  histogram.record(10, 99);
  histogram.record(20, 1);
  EXPECT_EQ(histogram.count(), 100u);
  EXPECT_DOUBLE_EQ(histogram.mean(), 10.1);
  EXPECT_EQ(histogram.quantile(0.99), 10u);
  EXPECT_EQ(histogram.quantile(0.995), 20u);
}

TEST(HistogramTest, VisitsItsBucketsInOrder) {
  Histogram histogram;
  histogram.record(1'000'000, 2);
  histogram.record(3);
  std::vector<std::tuple<uint64_t, uint64_t, uint64_t>> seen;
  histogram.for_each_bucket([&](uint64_t first, uint64_t last, uint64_t count) {
    seen.emplace_back(first, last, count);
  });
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen[0], std::tuple(3u, 3u, 1u));
  EXPECT_LE(std::get<0>(seen[1]), 1'000'000u);
  EXPECT_GE(std::get<1>(seen[1]), 1'000'000u);
  EXPECT_EQ(std::get<2>(seen[1]), 2u);
  histogram.clear();
  EXPECT_EQ(histogram.count(), 0u);
  EXPECT_EQ(histogram.max(), 0u);
}

}  // namespace
}  // namespace verbena
