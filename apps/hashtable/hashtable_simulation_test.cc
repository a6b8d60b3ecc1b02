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
#include "verbena/apps/hashtable.h"

namespace verbena::hashtable {
namespace {

constexpr uint64_t kClusters = VERBENA_ADDRESS_SANITIZER || VERBENA_THREAD_SANITIZER ? 200 : 1'000;

// What a run of all of them has met, so that the schedules are known to be hard enough.
struct Met {
  uint64_t rereads = 0;
  uint64_t lost_races = 0;
  uint64_t copied_entries = 0;
  uint64_t unanswered = 0;
  uint64_t refused = 0;
};

// What is not promised, in words; empty if all holds.
std::string broken_promise(uint64_t seed, std::string* description, Met* met) {
  Random random(seed);
  const auto front_ends = 2 + static_cast<uint32_t>(random.below(4));
  const auto pending = 1 + static_cast<uint32_t>(random.below(2) * random.below(8));
  // With many at once on one key, any order would do, and the checker has to try many.
  const uint64_t keys = pending + random.below(random.below(8) == 0 ? 400 : 24);
  // Sometimes there is no room for all keys.
  const HashtableFormat format = {.entries = 1 + random.below(16),
                                  .max_value_bytes = 100,
                                  .max_front_ends = 1,
                                  .hash_seed = seed};
  RemoteRegionOptions options = hashtable_region_options(format, pending);
  if (random.below(2) == 0) options.inline_bytes = 0;
  options.post_batch = 1 + static_cast<uint32_t>(random.below(options.pending));
  options.signal_interval = 1 + static_cast<uint32_t>(random.below(2));
  const sim::FaultSchedule faults = remote::draw_faults(random);
  const uint64_t operations = 20 + random.below(80);
  *description = fmt::format("{} front-ends, pending {}, {} keys, {} entries; {}", front_ends,
                             pending, keys, format.entries, sim::describe(faults));

  remote::SimulatedRegions regions(seed, front_ends, test::must(hashtable_bytes(format)), faults);
  test::must(format_hashtable(regions.memory(), format));
  std::vector<test::MapCall> calls;
  std::vector<std::vector<test::MapCall>> histories(front_ends);
  std::string wrong;
  if (!regions.run(options, [&](uint32_t number, RemoteRegion& region) {
        auto table = Hashtable::open(region);
        if (!table.ok()) {
          if (region.status().ok()) wrong = table.status().message();
          return;
        }
        Recorder recorder(**table, number, keys, seed ^ (number + 1), histories[number]);
        recorder.run(operations);
        if (recorder.torn() > 0) wrong = "a value is torn";
        if ((*table)->status().code() == StatusCode::kProtocolViolation) {
          wrong = (*table)->status().message();
        }
        const HashtableStatistics& statistics = (*table)->statistics();
        met->rereads += statistics.rereads;
        met->lost_races += statistics.lost_races;
        met->copied_entries += statistics.copied_entries;
        met->refused += recorder.refused();
      })) {
    return "a front-end hangs";
  }
  if (!wrong.empty()) return wrong;
  for (uint32_t i = 0; i < front_ends; ++i) {
    if (faults.is_survivable() && !regions.status(i).ok()) return regions.status(i).message();
    if (faults.is_survivable() && histories[i].size() != operations)
      return "operations are missing";
    calls.insert(calls.end(), histories[i].begin(), histories[i].end());
  }
  for (const test::MapCall& call : calls) met->unanswered += call.end_ns == test::kUnanswered;
  return test::broken_history(calls);
}

TEST(HashtableSimulationTest, PromisesHoldWhateverGoesWrong) {
  Met met;
  for (uint64_t seed = run_seed(); seed < run_seed() + kClusters; ++seed) {
    std::string description;
    const std::string broken = broken_promise(seed, &description, &met);
    ASSERT_EQ(broken, "")
        << description << "\nagain: VERBENA_SEED=" << seed
        << " build/release/bin/hashtable_test --gtest_filter=HashtableSimulation*";
  }
  EXPECT_GT(met.rereads, 0u);
  EXPECT_GT(met.lost_races, 0u);
  EXPECT_GT(met.copied_entries, 0u);
  EXPECT_GT(met.unanswered, met.refused);
  EXPECT_GT(met.refused, 0u);
}

}  // namespace
}  // namespace verbena::hashtable
