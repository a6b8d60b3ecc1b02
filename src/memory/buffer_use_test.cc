#include "src/memory/buffer_use.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "src/device/sim/cluster_for_test.h"
#include "src/device/verbs_for_test.h"
#include "src/memory/changed_memory_for_test.h"
#include "src/memory/reuse_measurement.h"
#include "verbena/data_path.h"

namespace verbena {

std::ostream& operator<<(std::ostream& out, BufferUseIndex index) {
  return out << (index == BufferUseIndex::kHash ? "hash" : "tree");
}

namespace {

using test::must;
using testing::HasSubstr;
using SendWay = BufferUse::Way;
using SendReason = BufferUse::Reason;

const void* at(uint64_t address) { return reinterpret_cast<const void*>(address); }

// 4 KiB pay after 60, 8 KiB after 32.
ReuseThresholds paper_table() { return ReuseThresholds::of_paper(ReusePath::kEagerWrite); }

class BufferUseTest : public testing::TestWithParam<BufferUseIndex> {
 protected:
  BufferUseTable make(BufferUseOptions options = {}) {
    options.index = GetParam();
    return must(BufferUseTable::create(paper_table(), options));
  }
};

TEST_P(BufferUseTest, ABufferIsRegisteredAfterAQuarterOfWhatPays) {
  BufferUseTable table = make();
  for (uint32_t reuses = 0; reuses < 15; ++reuses) {
    const BufferUse use = table.count(at(4096), 4096);
    ASSERT_EQ(use.way, SendWay::kCopy);
    ASSERT_EQ(use.reason, SendReason::kSeldomUsed);
    ASSERT_EQ(use.reuses, reuses);
    EXPECT_EQ(use.due, 15u);
    EXPECT_EQ(use.least_reuses, 60u);
  }
  const BufferUse use = table.count(at(4096), 4096);
  EXPECT_EQ(use.way, SendWay::kRegister) << "at the 15th reuse";
  EXPECT_EQ(table.count(at(4096), 4096).way, SendWay::kRegister) << "until somebody does it";
  table.registered(use);
  EXPECT_EQ(table.count(at(4096), 4096).way, SendWay::kInPlace);
  EXPECT_EQ(table.count(at(4096), 64).way, SendWay::kCopy) << "too small, wherever it is";
  EXPECT_EQ(table.count(at(8192), 4096).way, SendWay::kCopy) << "another buffer";
}

TEST_P(BufferUseTest, TheSizeAtHandDecides) {
  BufferUseTable table = make({.speculation = 1});
  for (int i = 0; i < 41; ++i) table.count(at(4096), 4096);
  EXPECT_EQ(table.count(at(4096), 4096).way, SendWay::kCopy);
  EXPECT_EQ(table.count(at(4096), 8192).way, SendWay::kRegister);
}

TEST_P(BufferUseTest, WhatCannotBeRegisteredIsTriedAgainLater) {
  BufferUseTable table = make();
  BufferUse use;
  int uses = 0;
  for (int tries = 0; tries < 4; ++tries) {
    do {
      use = table.count(at(4096), 4096);
      ++uses;
    } while (use.way == SendWay::kCopy);
    EXPECT_EQ(use.reuses, 15u << tries);
    table.refused(use);
    EXPECT_EQ(table.count(at(4096), 4096).reason, SendReason::kRefused);
    ++uses;
  }
  EXPECT_EQ(table.statistics().registered, 0u);
}

TEST_P(BufferUseTest, WhoseRegistrationWasLostEarnsTheNextOne) {
  BufferUseTable table = make();
  BufferUse use = table.count(at(4096), 4096);
  while (use.way != SendWay::kRegister) use = table.count(at(4096), 4096);
  table.registered(use);
  EXPECT_EQ(table.statistics().registered, 1u);
  use = table.count(at(4096), 4096);
  ASSERT_EQ(use.way, SendWay::kInPlace);
  table.lost(use);
  EXPECT_EQ(table.statistics().registered, 0u);
  // It did not pay: 60 reuses would have been enough.
  for (uint32_t i = 1; i < 30; ++i) EXPECT_EQ(table.count(at(4096), 4096).reuses, i);
  use = table.count(at(4096), 4096);
  ASSERT_EQ(use.way, SendWay::kRegister);
  table.registered(use);
  for (uint32_t i = 31; i <= 60; ++i) use = table.count(at(4096), 4096);
  EXPECT_EQ(use.reuses, 60u);
  table.lost(use);
  for (uint32_t i = 1; i < 15; ++i) EXPECT_EQ(table.count(at(4096), 4096).way, SendWay::kCopy);
  EXPECT_EQ(table.count(at(4096), 4096).way, SendWay::kRegister);
}

TEST_P(BufferUseTest, ABufferThatGrowsIsRegisteredAnew) {
  BufferUseTable table = make();
  BufferUse use = table.count(at(4096), 4096);
  while (use.way != SendWay::kRegister) use = table.count(at(4096), 4096);
  table.registered(use);
  EXPECT_EQ(table.count(at(4096), 2048).way, SendWay::kInPlace);
  use = table.count(at(4096), 8192);
  ASSERT_EQ(use.way, SendWay::kRegister);
  table.registered(use);
  EXPECT_EQ(table.statistics().registered, 1u);
  EXPECT_EQ(table.count(at(4096), 8192).way, SendWay::kInPlace);
  EXPECT_EQ(table.count(at(4096), 4096).way, SendWay::kInPlace);
}

// Other thresholds, and looks that count nothing.
TEST_P(BufferUseTest, TellsWhatItWouldDecide) {
  BufferUseTable table = make();
  const ReuseThresholds sends = ReuseThresholds::of_paper(ReusePath::kEagerSend);
  for (uint32_t i = 0; i < 15; ++i) {
    for (int looks = 0; looks < 2; ++looks) {
      const BufferUse next = table.look(at(4096), 4096, paper_table());
      EXPECT_EQ(next.way, SendWay::kCopy);
      EXPECT_EQ(next.reuses, i);
    }
    EXPECT_EQ(table.count(at(4096), 4096).reuses, i);
  }
  EXPECT_EQ(table.look(at(4096), 4096, paper_table()).way, SendWay::kRegister);
  EXPECT_EQ(table.look(at(4096), 4096, sends).way, SendWay::kCopy);
  EXPECT_EQ(table.count(at(4096), 4096, sends).due, 24u);
  EXPECT_EQ(table.look(at(4096), 64, sends).reason, SendReason::kNeverPays);
  EXPECT_EQ(table.statistics().uses, 16u);
  EXPECT_EQ(table.statistics().buffers, 1u);
}

TEST_P(BufferUseTest, AFullTableCopies) {
  BufferUseTable table = make({.max_buffers = 10, .adapts = false});
  for (uint64_t i = 1; i <= 10; ++i) {
    EXPECT_EQ(table.count(at(i * 64), 1024).reason, SendReason::kSeldomUsed);
  }
  EXPECT_EQ(table.count(at(11 * 64), 1024).reason, SendReason::kFull);
  EXPECT_EQ(table.count(at(3 * 64), 1024).reuses, 1u) << "what is in it is counted on";
  const BufferUseStatistics now = table.statistics();
  EXPECT_EQ(now.buffers, 10u);
  EXPECT_EQ(now.uses, 11u);
  EXPECT_EQ(now.reuses, 1u);
  EXPECT_EQ(now.not_added, 1u);
}

TEST_P(BufferUseTest, TellsOfTheBuffersOfAProgram) {
  BufferUseTable table = make({.counts_all_sizes = true});
  for (int i = 0; i < 100; ++i) table.count(at(4096), 8);
  for (int i = 0; i < 50; ++i) table.count(at(8192), 1600);
  EXPECT_EQ(table.count(at(4096), 8).way, SendWay::kCopy);
  const BufferUseStatistics now = table.statistics();
  EXPECT_EQ(now.most_reuses, 100u);
  EXPECT_EQ(now.most_used_bytes, 8u);
  EXPECT_EQ(now.uses, 151u);
  EXPECT_EQ(now.reuses, 149u);
}

TEST_P(BufferUseTest, EveryDecisionIsExplained) {
  BufferUseTable table = make({.max_buffers = 1, .adapts = false});
  const auto said = [](const BufferUse& use) { return BufferUseTable::explain(use); };
  EXPECT_THAT(said(table.count(at(4096), 64)),
              HasSubstr("64 bytes at 0x1000: copied; at this size"));
  EXPECT_THAT(said(table.count(at(4096), 4096)),
              HasSubstr("used again 0 times so far, registered after 15 (60 pay)"));
  EXPECT_THAT(said(table.count(at(8192), 4096)), HasSubstr("table is full"));
  BufferUse use;
  do use = table.count(at(4096), 4096);
  while (use.way == SendWay::kCopy);
  EXPECT_THAT(said(use), HasSubstr("registered and sent from its place; used again 15 times"));
  table.refused(use);
  EXPECT_THAT(said(table.count(at(4096), 4096)),
              HasSubstr("tried again after 30 reuses (16 so far)"));
  do use = table.count(at(4096), 4096);
  while (use.way == SendWay::kCopy);
  table.registered(use);
  EXPECT_THAT(said(table.count(at(4096), 4096)), HasSubstr("for which it is registered"));
}

TEST_P(BufferUseTest, OptionsThatMakeNoSenseAreRefused) {
  for (BufferUseOptions options :
       {BufferUseOptions{.bucket_bits = 0}, BufferUseOptions{.bucket_bits = 40},
        BufferUseOptions{.max_buffers = 0}, BufferUseOptions{.speculation = 0},
        BufferUseOptions{.speculation = 1.5}, BufferUseOptions{.least_registered_share = -1}}) {
    options.index = GetParam();
    const auto refused = BufferUseTable::create(paper_table(), options);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  }
}

// Against maps, with the rules as the paper has them.
TEST_P(BufferUseTest, RandomUseIsThatOfANaiveTable) {
  struct Naive {
    uint32_t reuses = 0;
    uint32_t not_before = 0;
    uint32_t registered = 0;  // bytes
  };
  constexpr unsigned kBits = 4;
  const bool hash = GetParam() == BufferUseIndex::kHash;
  BufferUseTable table = make({.bucket_bits = kBits, .max_buffers = 40});
  Random random(run_seed());
  std::map<uint64_t, Naive> naive;
  std::set<uint64_t> buckets;
  bool met = false;
  const auto bucket_of = [](uint64_t address) {
    return (address * 0x9e3779b97f4a7c15u) >> (64 - kBits);
  };
  for (int step = 0; step < 50'000; ++step) {
    // Some much more often than others.
    const uint64_t address = 64 * (1 + random.below(1 + random.below(1 + random.below(100))));
    const auto bytes = static_cast<uint32_t>(1 + random.below(9000));
    const BufferUse use = table.count(at(address), bytes);
    const uint32_t pays = paper_table().least_reuses(bytes);
    if (pays == kNeverPays) {
      ASSERT_EQ(use.reason, SendReason::kNeverPays);
      continue;
    }
    auto found = naive.find(address);
    if (found == naive.end()) {
      const auto registered = static_cast<double>(std::count_if(
          naive.begin(), naive.end(), [](const auto& one) { return one.second.registered > 0; }));
      const bool closed = hash && met && registered < 0.2 * static_cast<double>(naive.size());
      if (naive.size() == 40 || closed) {
        ASSERT_EQ(use.reason, naive.size() == 40 ? SendReason::kFull : SendReason::kClosed);
        continue;
      }
      met = met || !buckets.insert(bucket_of(address)).second;
      found = naive.emplace(address, Naive{}).first;
    } else {
      ++found->second.reuses;
    }
    Naive& one = found->second;
    ASSERT_EQ(use.reuses, one.reuses) << "step " << step;
    const uint32_t due = std::max(static_cast<uint32_t>(std::ceil(0.25 * pays)), one.not_before);
    const SendWay expected = bytes <= one.registered ? SendWay::kInPlace
                             : one.reuses >= due     ? SendWay::kRegister
                                                     : SendWay::kCopy;
    ASSERT_EQ(use.way, expected) << "step " << step;
    if (use.way == SendWay::kRegister && random.below(4) == 0) {
      table.refused(use);
      one.not_before = 2 * one.reuses;
    } else if (use.way == SendWay::kRegister && random.below(2) == 0) {
      table.registered(use);
      one.registered = std::max(one.registered, bytes);
    } else if (use.way == SendWay::kInPlace && random.below(30) == 0) {
      table.lost(use);
      one.registered = 0;
      one.not_before = one.reuses < pays ? 2 * due : 0;
      one.reuses = 0;
    }
  }
  EXPECT_EQ(table.statistics().buffers, naive.size());
}

INSTANTIATE_TEST_SUITE_P(Indexes, BufferUseTest,
                         testing::Values(BufferUseIndex::kHash, BufferUseIndex::kTree),
                         testing::PrintToStringParamName());

// The paper's two conditions, one at a time.
TEST(BufferUseAdaptationTest, ClosesWhenBucketsFillAndFewBuffersAreRegistered) {
  BufferUseTable table = must(BufferUseTable::create(paper_table(), {.bucket_bits = 8}));
  // As long as none meets another one, any number is taken.
  uint64_t address = 0;
  std::set<uint64_t> buckets;
  while (table.statistics().in_lists == 0) {
    address += 64;
    ASSERT_EQ(table.count(at(address), 8192).reason, SendReason::kSeldomUsed);
  }
  const uint32_t before = table.statistics().buffers;
  ASSERT_EQ(table.count(at(address + 64), 8192).reason, SendReason::kClosed);
  EXPECT_EQ(table.statistics().buffers, before);
  EXPECT_THAT(BufferUseTable::explain(table.count(at(address + 64), 8192)),
              HasSubstr("few of the buffers in the table are used often enough"));

  // Its buffers come to be used often: a fifth of them, and it takes others again.
  for (uint64_t i = 1; i * 5 <= before + 4; ++i) {
    BufferUse use;
    do use = table.count(at(64 * i), 8192);
    while (use.way == SendWay::kCopy);
    table.registered(use);
  }
  EXPECT_EQ(table.count(at(address + 64), 8192).reason, SendReason::kSeldomUsed);
}

// On which of them do nothing in a simulation may depend: that is a matter of addresses.
TEST(BufferUseAdaptationTest, InASimulationNoBuffersMeet) {
  sim::Cluster cluster(1);
  Thread thread = cluster.start(0, [] {
    constexpr uint64_t kBuffers = 1000;
    BufferUseTable table = must(BufferUseTable::create(paper_table(), {.bucket_bits = 1}));
    const auto use_all = [&table] {
      const DataPathStatistics before = data_path_statistics();
      for (uint64_t i = 1; i <= kBuffers; ++i) table.count(at(i * 64), 8192);
      return data_path_statistics() - before;
    };
    const DataPathStatistics added = use_all();
    EXPECT_EQ(added.polls, kBuffers);
    EXPECT_EQ(added.empty_polls, kBuffers);
    const DataPathStatistics found = use_all();
    EXPECT_EQ(found.polls, 2 * kBuffers);
    EXPECT_EQ(found.empty_polls, 0u);
    EXPECT_EQ(table.statistics().buffers, kBuffers);
    EXPECT_EQ(table.statistics().in_lists, 0u);
  });
  thread.join();
}

TEST(BufferUseAdaptationTest, CanBeSwitchedOff) {
  BufferUseTable table =
      must(BufferUseTable::create(paper_table(), {.bucket_bits = 1, .adapts = false}));
  for (uint64_t i = 1; i <= 1000; ++i) {
    ASSERT_EQ(table.count(at(i * 64), 8192).reason, SendReason::kSeldomUsed);
  }
  EXPECT_EQ(table.statistics().in_lists, 998u);
}

TEST(BufferUseAdaptationTest, AFullTableThatStartsAnewTakesWhoComesLate) {
  const BufferUseOptions options{
      .bucket_bits = 2, .max_buffers = 4, .adapts = false, .starts_anew = true};
  BufferUseTable table = must(BufferUseTable::create(paper_table(), options));
  for (uint64_t i = 1; i <= 6; ++i) {
    ASSERT_EQ(table.count(at(i * 64), 8192).reason, SendReason::kSeldomUsed);
  }
  EXPECT_EQ(table.statistics().buffers, 2u);
  EXPECT_EQ(table.statistics().reuses, 0u);
  EXPECT_EQ(table.count(at(6 * 64), 8192).reuses, 1u);
  EXPECT_EQ(table.count(at(64), 8192).reuses, 0u) << "forgotten";
  EXPECT_EQ(
      BufferUseTable::create(paper_table(), {.index = BufferUseIndex::kTree, .starts_anew = true})
          .status()
          .code(),
      StatusCode::kInvalidArgument);
}

// What is measured has to make sense; how long it takes here is nobody's promise.
void expect_sensible(const ReuseCostModel& costs) {
  EXPECT_GT(costs.registration_ns + costs.registration_page_ns, 0);
  EXPECT_GT(costs.copy_ns + costs.copy_byte_ns, 0);
  EXPECT_GT(costs.overhead_ns, 0);
}

TEST(ReuseMeasurementTest, MeasuresThisMachine) {
  if (auto device = Device::open("soft0"); !device.ok()) {
    GTEST_SKIP() << "no soft0 here: " << device.status().message();
  }
  const test::Node node;
  const auto cache = must(RegistrationCache::create(node.domain));
  expect_sensible(must(measure_reuse_costs(*cache, 0)));
  EXPECT_EQ(cache->statistics().regions, 0u);
}

TEST(ReuseMeasurementTest, MeasuresASimulatedMachine) {
  sim::Profile profile = must(sim::load_profile("connectx-ddr"));
  profile.jitter_percent = 0;
  sim::Cluster cluster(1, 1, profile);
  ReuseCostModel hash;
  ReuseCostModel tree;
  Thread thread = cluster.start(0, [&] {
    const auto cache = must(RegistrationCache::create(cluster[0].domain));
    hash = must(measure_reuse_costs(*cache, 0));
    tree = must(measure_reuse_costs(*cache, 0, BufferUseIndex::kTree));
  });
  thread.join();
  expect_sensible(hash);
  EXPECT_GT(hash.copy_byte_ns, 0);
  // As the profile has it.
  const double page_ns = static_cast<double>(profile.registration_page) / sim::kPsPerNs;
  const double base_ns = static_cast<double>(profile.registration) / sim::kPsPerNs;
  EXPECT_NEAR(hash.registration_page_ns, page_ns, 5);
  EXPECT_NEAR(hash.registration_ns, base_ns, 100);
  EXPECT_GT(tree.overhead_ns, hash.overhead_ns);
  EXPECT_LT(hash.overhead_ns, 200);
}

// All of it together: send from a set of buffers as buffer_use.h says.
TEST(BufferUseTogetherTest, OftenUsedBuffersAreRegisteredOnceAndSeldomUsedOnesNever) {
  sim::Cluster cluster(1);
  constexpr uint64_t kBytes = 8192;
  std::vector<char> memory(100 * kBytes);
  Thread thread = cluster.start(0, [&] {
    const auto cache = must(RegistrationCache::create(cluster[0].domain));
    RegistrationLookup lookup(*cache);
    BufferUseTable table = must(BufferUseTable::create(paper_table()));
    uint64_t copied = 0;
    uint64_t in_place = 0;
    // Buffer i is used i times.
    for (uint64_t i = 1; i <= 100; ++i) {
      char* const buffer = memory.data() + (i - 1) * kBytes;
      for (uint64_t use = 0; use < i; ++use) {
        const BufferUse what = table.count(buffer, kBytes);
        if (what.way == SendWay::kRegister && lookup.get(buffer, kBytes, 0).ok()) {
          table.registered(what);
          ++in_place;
        } else if (what.way == SendWay::kInPlace && lookup.find(buffer, kBytes, 0)) {
          ++in_place;
        } else {
          ++copied;
        }
      }
    }
    // 32 pay, so 8 reuses are enough: all uses of a buffer but the first eight.
    EXPECT_EQ(in_place, 92u * 93 / 2);
    EXPECT_EQ(copied, 100u * 101 / 2 - in_place);
    EXPECT_EQ(table.statistics().registered, 92u);
    EXPECT_LE(cache->statistics().registrations, 92u);
  });
  thread.join();
}

}  // namespace
}  // namespace verbena
