// That what one front-end has pending on a key is no work in vain: in virtual time, where the
// numbers are always the same.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "hashtable/recorder_for_test.h"
#include "src/base/runtime.h"
#include "src/remote/simulated_regions_for_test.h"
#include "verbena/apps/hashtable.h"

namespace verbena::hashtable {
namespace {

constexpr uint32_t kPendingAtOnce = 32;

// Lets one front-end use a table of `format` alone.
void use_alone(const HashtableFormat& format, uint32_t pending,
               const std::function<void(Hashtable&, RemoteRegion&)>& use) {
  remote::SimulatedRegions regions(1, 1, test::must(hashtable_bytes(format)), {});
  test::must(format_hashtable(regions.memory(), format));
  EXPECT_TRUE(regions.run(hashtable_region_options(format, pending),
                          [&](uint32_t /*number*/, RemoteRegion& region) {
                            use(*test::must(Hashtable::open(region)), region);
                          }));
  test::must(regions.status(0));
}

uint64_t work_requests(const RemoteRegion& region) {
  const RemoteStatistics& statistics = region.statistics();
  return statistics.reads + statistics.writes + statistics.atomics;
}

TEST(HashtableTurnsTest, PendingUpdatesOfOneKeyArePublishedTogether) {
  constexpr uint64_t kUpdates = 1'000;
  std::set<uint64_t> answered;
  HashtableStatistics statistics;
  uint64_t requests = 0;
  uint64_t took_ns = 0;
  std::string last;
  use_alone({}, kPendingAtOnce, [&](Hashtable& table, RemoteRegion& region) {
    const uint64_t begin_ns = now_ns();
    Waiter waiter;
    uint64_t posted = 0;
    while (answered.size() < kUpdates && table.status().ok()) {
      while (posted < kUpdates &&
             table.post_update("key", std::to_string(posted), posted) == PostResult::kPosted) {
        ++posted;
      }
      const uint32_t replies = table.poll([&](const HashtableReply& reply) {
        EXPECT_EQ(reply.outcome, HashtableOutcome::kDone);
        EXPECT_TRUE(answered.insert(reply.token).second) << reply.token << " answered twice";
      });
      replies > 0 ? waiter.progress() : waiter.idle();
    }
    took_ns = now_ns() - begin_ns;
    statistics = table.statistics();
    requests = work_requests(region);
    last = table.search("key").value;
  });
  EXPECT_EQ(answered.size(), kUpdates);
  EXPECT_EQ(statistics.updates, kUpdates);
  EXPECT_EQ(statistics.lost_races, 0u);
  // One of each 32 is published, by a WRITE and a compare-and-swap in one round trip.
  EXPECT_GT(statistics.overwritten_updates, kUpdates * 9 / 10);
  EXPECT_LT(requests, kUpdates / 5);
  EXPECT_LT(took_ns, kUpdates * 300);
  // One of those that were pending last.
  EXPECT_GE(std::stoul(last), kUpdates - kPendingAtOnce);
}

// All that modifies takes turns, also where two keys are in one bucket, and nothing waits for ever.
TEST(HashtableTurnsTest, PendingModificationsOfOneBucketDoNotRace) {
  constexpr uint64_t kOperations = 500;
  constexpr uint64_t kKeysOfFewBuckets = 3;
  std::vector<test::MapCall> calls;
  HashtableStatistics statistics;
  use_alone({.entries = 1, .max_value_bytes = 100}, 4, [&](Hashtable& table, RemoteRegion&) {
    Recorder recorder(table, 0, kKeysOfFewBuckets, 1, calls);
    recorder.run(kOperations);
    statistics = table.statistics();
  });
  EXPECT_EQ(calls.size(), kOperations);
  EXPECT_EQ(test::broken_history(calls), "");
  EXPECT_EQ(statistics.lost_races, 0u);
  EXPECT_GT(statistics.copied_entries, 0u);
  EXPECT_GT(statistics.overwritten_updates, 0u);
}

// An update that finds its key in place, and nobody else, takes three round trips; the next one on
// the same key, that waited, one: it knows the bucket.
TEST(HashtableTurnsTest, AnUpdateThatWaitedBeginsWhereTheOneBeforeEnded) {
  uint64_t requests = 0;
  HashtableStatistics statistics;
  use_alone({}, 2, [&](Hashtable& table, RemoteRegion& region) {
    EXPECT_EQ(table.update("key", "0").outcome, HashtableOutcome::kDone);
    const uint64_t before = work_requests(region);
    // The second one comes when the first one has been published, but not answered yet.
    EXPECT_EQ(table.post_update("key", "1", 1), PostResult::kPosted);
    uint32_t replies = 0;
    const auto take = [&replies](const HashtableReply&) { ++replies; };
    while (work_requests(region) < before + 4) table.poll(take);
    EXPECT_EQ(replies, 0u);
    EXPECT_EQ(table.post_update("key", "2", 2), PostResult::kPosted);
    Waiter waiter;
    while (replies < 2 && table.status().ok())
      table.poll(take) > 0 ? waiter.progress() : waiter.idle();
    requests = work_requests(region) - before;
    statistics = table.statistics();
    EXPECT_EQ(table.search("key").value, "2");
  });
  EXPECT_EQ(statistics.overwritten_updates, 0u);
  EXPECT_EQ(statistics.lost_races, 0u);
  EXPECT_EQ(requests, 6u);
}

// A poll that answers nothing posts what it has prepared: nobody would wake who waits for it.
TEST(HashtableTurnsTest, APollLeavesNothingUnposted) {
  uint64_t took_ns = 0;
  use_alone({}, 1, [&](Hashtable& table, RemoteRegion&) {
    const uint64_t begin_ns = now_ns();
    EXPECT_EQ(table.post_update("key", "value", 1), PostResult::kPosted);
    Waiter waiter;
    while (table.pending() > 0 && table.status().ok()) {
      table.poll([](const HashtableReply&) {}) > 0 ? waiter.progress() : waiter.idle();
    }
    took_ns = now_ns() - begin_ns;
  });
  EXPECT_LT(took_ns, 50'000u);
}

}  // namespace
}  // namespace verbena::hashtable
