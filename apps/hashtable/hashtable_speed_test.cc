// That the hot area pays: skewed updates on a simulated cluster, with it and without it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "src/base/runtime.h"
#include "src/remote/simulated_regions_for_test.h"
#include "verbena/apps/hashtable.h"

namespace verbena::hashtable {
namespace {

// Numbers below `count`, of which i comes with a probability in proportion to 1 / (i + 1)^0.99.
class Zipf {
 public:
  explicit Zipf(uint64_t count) : sums_(count) {
    double sum = 0;
    for (uint64_t i = 0; i < count; ++i) {
      sum += std::pow(static_cast<double>(i + 1), -0.99);
      sums_[i] = sum;
    }
  }
  uint64_t draw(Random& random) const {
    const double at = static_cast<double>(random.next() >> 11) * 0x1p-53 * sums_.back();
    return static_cast<uint64_t>(std::upper_bound(sums_.begin(), sums_.end(), at) - sums_.begin());
  }

 private:
  std::vector<double> sums_;
};

constexpr uint32_t kFrontEnds = 4;
constexpr uint32_t kPending = 128;
constexpr HashtableOptions kGathering = {.hot_modifications = 32, .hot_lease_ns = 20'000};
constexpr uint64_t kKeys = 2048;
constexpr uint64_t kUpdates = 2'000;  // of each front-end

void update(Hashtable& table, const Zipf& zipf, uint64_t updates, Random& random) {
  const std::string value(64, 'v');
  for (uint64_t i = 0; i < updates; ++i) {
    const std::string key = std::to_string(zipf.draw(random));
    while (table.post_update(key, value, i) == PostResult::kWouldBlock) {
      table.poll([](const HashtableReply&) {});
    }
  }
}

// Until all is answered, and published.
Status finish(Hashtable& table) {
  Waiter waiter;
  while (table.pending() > 0 && table.status().ok()) {
    const uint32_t replies = table.poll([](const HashtableReply&) {});
    replies > 0 ? waiter.progress() : waiter.idle(table.due_ns());
  }
  return table.flush();
}

// Updates per millisecond of all front-ends together. The most popular keys begin as hot ones.
double rate(uint32_t hot_blocks, uint32_t pending, const HashtableOptions& options,
            HashtableStatistics* of_one) {
  const HashtableFormat format = {.entries = kKeys,
                                  .max_key_bytes = 16,
                                  .max_value_bytes = 64,
                                  .hot_blocks = hot_blocks,
                                  .hot_block_entries = 32};
  const uint64_t hot_keys = uint64_t{hot_blocks} * format.hot_block_entries;
  const Zipf zipf(kKeys);
  remote::SimulatedRegions regions(1, kFrontEnds, test::must(hashtable_bytes(format)), {});
  test::must(format_hashtable(regions.memory(), format));
  std::string key;
  test::must(fill_hashtable(regions.memory(), kKeys, [&](uint64_t number) {
    key = std::to_string(number);
    return HashtableEntry{key, key, number < hot_keys};
  }));
  uint64_t begin_ns = ~uint64_t{0};
  uint64_t end_ns = 0;
  EXPECT_TRUE(regions.run(hashtable_region_options(format, pending, options),
                          [&](uint32_t number, RemoteRegion& region) {
                            auto table = test::must(Hashtable::open(region, options));
                            Random random(number + 1);
                            begin_ns = std::min(begin_ns, now_ns());
                            update(*table, zipf, kUpdates, random);
                            test::must(finish(*table));
                            end_ns = std::max(end_ns, now_ns());
                            test::must(table->close());
                            *of_one = table->statistics();
                          }));
  return 1e6 * static_cast<double>(kUpdates * kFrontEnds) / static_cast<double>(end_ns - begin_ns);
}

TEST(HashtableSpeedTest, TheHotAreaSpeedsSkewedUpdatesUp) {
  HashtableStatistics statistics;
  const double basic = rate(0, kPending, kGathering, &statistics);
  EXPECT_EQ(statistics.hot_hits, 0u);
  // A quarter of the keys fits in.
  const double hot = rate(16, kPending, kGathering, &statistics);
  EXPECT_GT(statistics.hot_hits, statistics.updates / 2);
  EXPECT_GT(statistics.hot_modifications, 2 * statistics.hot_flushes);
  EXPECT_GT(hot, 1.3 * basic) << hot << " and " << basic << " updates per ms";
}

// Without many pending, and with all that is left published within the time.
TEST(HashtableSpeedTest, AnswersBeforePublicationSpeedSkewedUpdatesUpMore) {
  constexpr uint32_t kFewPending = 8;
  HashtableOptions buffering = kGathering;
  buffering.acknowledgement = HashtableAcknowledgement::kBuffered;
  HashtableStatistics statistics;
  const double basic = rate(0, kFewPending, kGathering, &statistics);
  const double published = rate(16, kFewPending, kGathering, &statistics);
  EXPECT_EQ(statistics.hot_kept, 0u);
  const double buffered = rate(16, kFewPending, buffering, &statistics);
  EXPECT_GT(statistics.hot_kept, statistics.updates / 2);
  EXPECT_GT(statistics.hot_modifications, 8 * statistics.hot_flushes);
  EXPECT_GT(buffered, 2.5 * basic) << buffered << " and " << basic << " updates per ms";
  EXPECT_GT(buffered, 2.5 * published) << buffered << " and " << published << " updates per ms";
}

}  // namespace
}  // namespace verbena::hashtable
