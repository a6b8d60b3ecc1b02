// The promises of hashtable.h in clusters in virtual time, each from a seed, with faults.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "hashtable/recorder_for_test.h"
#include "src/base/runtime.h"
#include "src/base/sanitizer.h"
#include "src/remote/simulated_regions_for_test.h"
#include "tests/test_seed.h"
#include "verbena/apps/hashtable.h"

namespace verbena::hashtable {
namespace {

constexpr uint64_t kClusters = VERBENA_ADDRESS_SANITIZER || VERBENA_THREAD_SANITIZER ? 200 : 1'000;

// What a run of all of them has met, so that the schedules are known to be hard enough.
struct Met {
  uint64_t rereads = 0;
  uint64_t lost_races = 0;
  uint64_t copied_entries = 0;
  uint64_t overwritten_updates = 0;
  uint64_t unanswered = 0;
  uint64_t refused = 0;
  HashtableStatistics hot;
};

void add_hot(const HashtableStatistics& more, HashtableStatistics* sum) {
  sum->hot_hits += more.hot_hits;
  sum->hot_modifications += more.hot_modifications;
  sum->hot_flushes += more.hot_flushes;
  sum->hot_kept += more.hot_kept;
  sum->hot_strays += more.hot_strays;
  sum->hot_loads += more.hot_loads;
  sum->hot_lost_races += more.hot_lost_races;
  sum->hot_promotions += more.hot_promotions;
  sum->hot_demotions += more.hot_demotions;
  sum->hot_refusals += more.hot_refusals;
  sum->hot_lock_waits += more.hot_lock_waits;
  sum->hot_lock_takeovers += more.hot_lock_takeovers;
}

// A small one, in which keys come and go.
void draw_hot_area(Random& random, HashtableFormat* format, HashtableOptions* options) {
  format->hot_blocks = 1 + static_cast<uint32_t>(random.below(4));
  format->hot_block_entries = 2u << random.below(2);
  format->hot_lock_lease_ns = random.below(2) == 0 ? 5'000 : 200'000;
  options->hot_modifications = 1 + static_cast<uint32_t>(random.below(6));
  options->hot_lease_ns = random.below(3) * 5'000;
  options->hot_after = 1 + static_cast<uint32_t>(random.below(3));
  options->hot_patience = 1 + static_cast<uint32_t>(random.below(4));
}

enum class Area : uint8_t { kCold, kHot, kBuffered };

// What is not promised, in words; empty if all holds.
std::string broken_promise(uint64_t seed, Area area, std::string* description, Met* met) {
  Random random(seed);
  const auto front_ends = 2 + static_cast<uint32_t>(random.below(4));
  const auto pending = 1 + static_cast<uint32_t>(random.below(2) * random.below(8));
  // With many at once on one key, any order would do, and the checker has to try many.
  const uint64_t keys = (pending + 1) / 2 + random.below(random.below(8) == 0 ? 400 : 24);
  // Sometimes there is no room for all keys.
  HashtableFormat format = {.entries = 1 + random.below(16),
                            .max_value_bytes = 100,
                            .max_front_ends = 1,
                            .hash_seed = seed};
  HashtableOptions table_options;
  if (area != Area::kCold) draw_hot_area(random, &format, &table_options);
  if (area == Area::kBuffered) {
    table_options.acknowledgement = HashtableAcknowledgement::kBuffered;
    table_options.loss_window_ns = (random.below(2) == 0 ? 2 : 8) * format.hot_lock_lease_ns;
  }
  RemoteRegionOptions options = hashtable_region_options(format, pending, table_options);
  if (random.below(2) == 0) options.inline_bytes = 0;
  options.post_batch = 1 + static_cast<uint32_t>(random.below(options.pending));
  options.signal_interval = 1 + static_cast<uint32_t>(random.below(2));
  const sim::FaultSchedule faults = remote::draw_faults(random);
  const uint64_t operations = 20 + random.below(80);
  *description =
      fmt::format("{} front-ends, pending {}, {} keys, {} entries, {} hot blocks; {}", front_ends,
                  pending, keys, format.entries, format.hot_blocks, sim::describe(faults));

  remote::SimulatedRegions regions(seed, front_ends, test::must(hashtable_bytes(format)), faults);
  test::must(format_hashtable(regions.memory(), format));
  std::vector<test::MapCall> calls;
  std::vector<std::vector<test::MapCall>> histories(front_ends);
  std::string wrong;
  if (!regions.run(options, [&](uint32_t number, RemoteRegion& region) {
        auto table = Hashtable::open(region, table_options);
        if (!table.ok()) {
          if (region.status().ok()) wrong = table.status().message();
          return;
        }
        Recorder recorder(**table, number, keys, seed ^ (number + 1), histories[number],
                          area == Area::kBuffered ? 8 : 4);
        recorder.run(operations);
        if (recorder.torn() > 0) wrong = "a value is torn";
        if ((*table)->status().code() == StatusCode::kProtocolViolation) {
          wrong = (*table)->status().message();
        }
        const HashtableStatistics& statistics = (*table)->statistics();
        met->rereads += statistics.rereads;
        met->lost_races += statistics.lost_races;
        met->copied_entries += statistics.copied_entries;
        met->overwritten_updates += statistics.overwritten_updates;
        met->refused += recorder.refused();
        add_hot(statistics, &met->hot);
      })) {
    return "a front-end hangs";
  }
  if (!wrong.empty()) return wrong;
  for (uint32_t i = 0; i < front_ends; ++i) {
    if (faults.is_survivable() && !regions.status(i).ok()) return regions.status(i).message();
    if (faults.is_survivable() && histories[i].size() != operations)
      return "operations are missing";
    test::extend_searches(histories[i]);
    calls.insert(calls.end(), histories[i].begin(), histories[i].end());
  }
  for (const test::MapCall& call : calls) met->unanswered += call.end_ns == test::kUnanswered;
  return test::broken_history(calls);
}

void run_clusters(Area area, Met* met) {
  for (uint64_t seed = run_seed(); seed < run_seed() + kClusters; ++seed) {
    std::string description;
    const std::string broken = broken_promise(seed, area, &description, met);
    const char* const suite =
        testing::UnitTest::GetInstance()->current_test_info()->test_suite_name();
    ASSERT_EQ(broken, "") << description << "\nagain: VERBENA_SEED=" << seed
                          << " build/release/bin/hashtable_test --gtest_filter=" << suite << ".*";
  }
  report_count("seeds", kClusters);
  EXPECT_GT(met->rereads, 0u);
  EXPECT_GT(met->lost_races, 0u);
  EXPECT_GT(met->copied_entries, 0u);
  EXPECT_GT(met->overwritten_updates, kClusters / 10);
  EXPECT_GT(met->unanswered, met->refused);
  EXPECT_GT(met->refused, 0u);
}

TEST(HashtableSimulationTest, PromisesHoldWhateverGoesWrong) {
  Met met;
  run_clusters(Area::kCold, &met);
  EXPECT_EQ(met.hot.hot_hits, 0u);
}

TEST(HashtableHotSimulationTest, PromisesHoldWhateverGoesWrong) {
  Met met;
  run_clusters(Area::kHot, &met);
  const HashtableStatistics& hot = met.hot;
  EXPECT_EQ(hot.hot_kept, 0u);
  EXPECT_GT(hot.hot_hits, 10 * kClusters);
  EXPECT_GT(hot.hot_modifications, hot.hot_flushes);
  EXPECT_GT(hot.hot_loads, kClusters);
  EXPECT_GT(hot.hot_lost_races, kClusters / 10);
  EXPECT_GT(hot.hot_promotions, kClusters);
  EXPECT_GT(hot.hot_demotions, kClusters);
  EXPECT_GT(hot.hot_refusals, kClusters);
  EXPECT_GT(hot.hot_lock_waits, kClusters / 10);
  EXPECT_GT(hot.hot_lock_takeovers, 0u);
}

// Updates that are answered before they are published: for each key there is one order of all
// calls, with those of each front-end in its own.
TEST(HashtableBufferedSimulationTest, PromisesHoldWhateverGoesWrong) {
  Met met;
  run_clusters(Area::kBuffered, &met);
  const HashtableStatistics& hot = met.hot;
  EXPECT_GT(hot.hot_kept, 10 * kClusters);
  EXPECT_GT(hot.hot_strays, kClusters / 10);
  EXPECT_GT(hot.hot_lost_races, kClusters);
  EXPECT_GT(hot.hot_demotions, kClusters);
  EXPECT_GT(hot.hot_lock_takeovers, 0u);
}

}  // namespace
}  // namespace verbena::hashtable
