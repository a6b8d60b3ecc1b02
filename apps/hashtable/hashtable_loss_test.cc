// What a front-end that dies loses of the updates that it answered before they were published:
// those of the loss window, and nothing older. In virtual time, where its length is known.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "src/base/runtime.h"
#include "src/base/sanitizer.h"
#include "src/remote/simulated_regions_for_test.h"
#include "verbena/apps/hashtable.h"

namespace verbena::hashtable {
namespace {

constexpr uint64_t kDeaths = VERBENA_ADDRESS_SANITIZER || VERBENA_THREAD_SANITIZER ? 20 : 100;
constexpr uint64_t kKeysEach = 8;
constexpr HashtableFormat kLossFormat = {.entries = 64,
                                         .max_front_ends = 2,
                                         .hot_blocks = 4,
                                         .hot_block_entries = 16,
                                         .hot_lock_lease_ns = 100'000};
constexpr HashtableOptions kLossOptions = {.hot_modifications = 1'000,
                                           .acknowledgement = HashtableAcknowledgement::kBuffered,
                                           .loss_window_ns = 2 * kLossFormat.hot_lock_lease_ns};

class Death {
 public:
  explicit Death(uint64_t seed)
      : seed_(seed), regions_(seed, 2, test::must(hashtable_bytes(kLossFormat)), {}) {
    test::must(format_hashtable(regions_.memory(), kLossFormat));
    std::string key;
    test::must(fill_hashtable(regions_.memory(), 2 * kKeysEach, [&](uint64_t number) {
      key = key_of(number);
      return HashtableEntry{key, "0", true};
    }));
  }

  // One front-end dies at work, the other one has keys in the same blocks, and looks afterwards.
  void run() {
    EXPECT_TRUE(regions_.run(hashtable_region_options(kLossFormat, 1, kLossOptions),
                             [this](uint32_t number, RemoteRegion& region) {
                               auto table = test::must(Hashtable::open(region, kLossOptions));
                               number == 0 ? work(*table) : outlive(*table);
                             }));
    EXPECT_TRUE(regions_.crashed(0));
    EXPECT_TRUE(regions_.status(1).ok()) << regions_.status(1).message();
  }

  uint64_t lost() const { return lost_; }
  uint64_t kept() const { return kept_; }

 private:
  static std::string key_of(uint64_t number) { return "key " + std::to_string(number); }

  void work(Hashtable& table) {
    Random random(seed_);
    for (uint64_t i = 1;; ++i) {
      const uint64_t key = random.below(kKeysEach);
      ASSERT_EQ(table.update(key_of(key), std::to_string(i)).outcome, HashtableOutcome::kDone);
      history_.push_back({now_ns(), key, i});
      kept_ = table.statistics().hot_kept;
      sleep_ns(100 + random.below(2'000));
    }
  }

  void outlive(Hashtable& table) {
    Random random(~seed_);
    const uint64_t end_ns = now_ns() + 300'000 + random.below(700'000);
    while (now_ns() < end_ns) {
      const std::string key = key_of(kKeysEach + random.below(kKeysEach));
      ASSERT_EQ(table.update(key, "1").outcome, HashtableOutcome::kDone);
      if (random.below(8) == 0) test::must(table.flush());
      sleep_ns(random.below(5'000));
    }
    regions_.cluster().node(1).crash();
    const uint64_t death_ns = now_ns();
    std::array<uint64_t, kKeysEach> safe{};
    std::array<uint64_t, kKeysEach> last{};
    for (const Reply& reply : history_) {
      last[reply.key] = reply.value;
      if (reply.at_ns + kLossOptions.loss_window_ns < death_ns) safe[reply.key] = reply.value;
    }
    for (uint64_t key = 0; key < kKeysEach; ++key) {
      const HashtableReply reply = table.search(key_of(key));
      ASSERT_EQ(reply.outcome, HashtableOutcome::kDone);
      const uint64_t found = std::strtoull(std::string(reply.value).c_str(), nullptr, 10);
      EXPECT_GE(found, safe[key]) << key << ", seed " << seed_;
      EXPECT_LE(found, last[key]);
      lost_ += found < last[key] ? 1 : 0;
    }
    // What it was writing is done or not; none of it blocks the others.
    EXPECT_EQ(table.update(key_of(0), "after").outcome, HashtableOutcome::kDone);
    test::must(table.close());
  }

  struct Reply {
    uint64_t at_ns;
    uint64_t key;
    uint64_t value;
  };

  const uint64_t seed_;
  remote::SimulatedRegions regions_;
  std::vector<Reply> history_;
  uint64_t lost_ = 0;
  uint64_t kept_ = 0;
};

TEST(HashtableLossTest, WhatWasAnsweredBeforeTheLossWindowIsThere) {
  uint64_t lost = 0;
  uint64_t kept = 0;
  for (uint64_t seed = run_seed(); seed < run_seed() + kDeaths && !testing::Test::HasFailure();
       ++seed) {
    Death death(seed);
    death.run();
    lost += death.lost();
    kept += death.kept();
  }
  // It is no empty promise: what is younger does get lost.
  EXPECT_GT(kept, 10 * kDeaths);
  EXPECT_GT(lost, kDeaths);
}

}  // namespace
}  // namespace verbena::hashtable
