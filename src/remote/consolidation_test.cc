#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "src/base/sanitizer.h"
#include "src/remote/block_buffer.h"
#include "src/remote/dirty_bits.h"
#include "src/remote/region_for_test.h"
#include "src/remote/simulated_regions_for_test.h"
#include "verbena/remote_consolidation.h"

namespace verbena::remote {
namespace {

using testing::HasSubstr;
using Cell = RemotePointer<uint64_t>;

constexpr uint64_t kNeverNs = 3'600'000'000'000;

TEST(DirtyBitsTest, RunsAreThoseOfABitByBitSearch) {
  const uint64_t seed = run_seed();
  SCOPED_TRACE(seed);
  Random random(seed);
  constexpr uint32_t kBits = 256;
  for (int round = 0; round < 500; ++round) {
    std::vector<uint64_t> words(DirtyBits::words_for(kBits));
    DirtyBits bits(words);
    std::vector<bool> expected(kBits);
    for (uint64_t i = random.below(6); i > 0; --i) {
      const auto begin = static_cast<uint32_t>(random.below(kBits));
      const auto end = begin + static_cast<uint32_t>(random.below(kBits - begin + 1));
      bits.set(begin, end);
      std::fill(expected.begin() + begin, expected.begin() + end, true);
    }
    std::vector<bool> found(kBits);
    DirtyBits::Run hull;
    for (DirtyBits::Run run = bits.next(0); !run.empty(); run = bits.next(run.end)) {
      if (hull.empty()) hull.begin = run.begin;
      hull.end = run.end;
      std::fill(found.begin() + run.begin, found.begin() + run.end, true);
      ASSERT_TRUE(bits.all(run.begin, run.end));
    }
    ASSERT_EQ(found, expected);
    ASSERT_EQ(bits.hull().begin, hull.begin);
    ASSERT_EQ(bits.hull().end, hull.end);
    bits.clear();
    ASSERT_TRUE(bits.next(0).empty());
  }
}

RegionForTest::Opened open_for_blocks(RegionForTest& region, uint32_t value_bytes = 1024) {
  return region.open({.value_bytes = value_bytes});
}

TEST(ConsolidationTest, AThetaOfWritesIsOneWrite) {
  RegionForTest region;
  auto front_end = open_for_blocks(region);
  ASSERT_TRUE(front_end.region.ok());
  auto hot = must(ConsolidatedRegion::create(
      *front_end, {.modifications = 4, .lease_ns = kNeverNs, .exclusive = true}));
  const auto at_back_end = [&](uint64_t offset) {
    return *reinterpret_cast<const uint64_t*>(region->data() + offset);
  };
  std::memset(region->data(), 'b', 4096);
  for (uint64_t i = 1; i <= 4; ++i) {
    EXPECT_EQ(front_end->statistics().writes, 0u);
    ASSERT_TRUE(hot->write(Cell{1024 + 16 * i}, i).ok());
    EXPECT_EQ(*hot->read(Cell{1024 + 16 * i}), i) << "one's own";
  }
  EXPECT_EQ(front_end->statistics().writes, 1u);
  ASSERT_TRUE(hot->flush().ok());
  for (uint64_t i = 1; i <= 4; ++i) EXPECT_EQ(at_back_end(1024 + 16 * i), i);
  EXPECT_EQ(region->data()[1024 + 16 + 8], 'b') << "what lies between was known";
  EXPECT_EQ(hot->statistics().full_flushes, 1u);
  EXPECT_EQ(hot->statistics().loads, 1u);
  EXPECT_EQ(*hot->read(Cell{1024 + 512}), at_back_end(1024 + 512)) << "loaded, no round trip";
  EXPECT_EQ(hot->statistics().local_reads, 5u);
  EXPECT_EQ(front_end->statistics().reads, 1u);
}

// Whose end is beyond what a clock can tell.
TEST(ConsolidationTest, AVeryLongLeaseDoesNotEnd) {
  RegionForTest region;
  auto front_end = open_for_blocks(region);
  ASSERT_TRUE(front_end.region.ok());
  auto hot = must(ConsolidatedRegion::create(*front_end, {.lease_ns = UINT64_MAX}));
  ASSERT_TRUE(hot->write(Cell{8}, 1).ok());
  ASSERT_TRUE(hot->poll().ok());
  EXPECT_EQ(front_end->statistics().writes, 0u);
  EXPECT_EQ(hot->statistics().due_flushes, 0u);
}

TEST(ConsolidationTest, NothingIsLostAtTheEnd) {
  RegionForTest region;
  auto front_end = open_for_blocks(region);
  ASSERT_TRUE(front_end.region.ok());
  const ConsolidationOptions options{.modifications = 1000, .lease_ns = kNeverNs};
  auto hot = must(ConsolidatedRegion::create(*front_end, options));
  ASSERT_TRUE(hot->write(Cell{8}, 1).ok());
  EXPECT_EQ(*front_end->read(Cell{8}), 0u);
  ASSERT_TRUE(hot->close().ok());
  EXPECT_EQ(*front_end->read(Cell{8}), 1u);
  ASSERT_TRUE(hot->write(Cell{16}, 2).ok());
  hot.reset();
  EXPECT_EQ(*front_end->read(Cell{16}), 2u);
}

// Each front-end writes every second byte of the same blocks: none writes the other one's.
TEST(ConsolidationTest, SharedBlocksKeepWhatOthersWrote) {
  RegionForTest region;
  auto even = open_for_blocks(region, 64);
  auto odd = open_for_blocks(region, 64);
  ASSERT_TRUE(even.region.ok() && odd.region.ok());
  const ConsolidationOptions options{.block_bytes = 64, .modifications = 5, .lease_ns = kNeverNs};
  auto first = must(ConsolidatedRegion::create(*even, options));
  auto second = must(ConsolidatedRegion::create(*odd, options));
  for (uint64_t i = 0; i < 256; i += 2) {
    ASSERT_TRUE(first->write(RemotePointer<char>{i}, 'e').ok());
    ASSERT_TRUE(second->write(RemotePointer<char>{i + 1}, 'o').ok());
  }
  ASSERT_TRUE(first->flush().ok());
  ASSERT_TRUE(second->flush().ok());
  for (uint64_t i = 0; i < 256; ++i) ASSERT_EQ(region->data()[i], i % 2 == 0 ? 'e' : 'o');
}

TEST(ConsolidationTest, OnlyHotRangesAreConsolidated) {
  RegionForTest region;
  auto front_end = open_for_blocks(region);
  ASSERT_TRUE(front_end.region.ok());
  auto hot = must(ConsolidatedRegion::create(*front_end, {.lease_ns = kNeverNs}));
  EXPECT_EQ(hot->add_hot_range(4000, 97).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(hot->add_hot_range(1030, 1).ok());
  ASSERT_TRUE(hot->write(Cell{0}, 1).ok());
  EXPECT_EQ(*front_end->read(Cell{0}), 1u);
  EXPECT_EQ(hot->statistics().unconsolidated, 1u);
  ASSERT_TRUE(hot->write(Cell{2040}, 2).ok());
  EXPECT_EQ(*front_end->read(Cell{2040}), 0u) << "the rest of a hot block is hot";
  EXPECT_EQ(*hot->read(Cell{2040}), 2u);
}

// Without a hint everything is hot, and modifications of what is not any more must not come later.
TEST(ConsolidationTest, TheFirstHintLeavesNoModificationBehind) {
  RegionForTest region;
  auto front_end = open_for_blocks(region);
  ASSERT_TRUE(front_end.region.ok());
  for (const bool exclusive : {false, true}) {
    auto hot = must(
        ConsolidatedRegion::create(*front_end, {.lease_ns = kNeverNs, .exclusive = exclusive}));
    ASSERT_TRUE(hot->write(Cell{0}, 1).ok());
    ASSERT_TRUE(hot->add_hot_range(2048, 64).ok());
    ASSERT_TRUE(hot->write(Cell{0}, 2).ok());
    EXPECT_EQ(*hot->read(Cell{0}), 2u);
    ASSERT_TRUE(hot->flush().ok());
    EXPECT_EQ(*front_end->read(Cell{0}), 2u);
  }
}

TEST(ConsolidationTest, ABlockThatWasLoadedBeforeTheFirstHintIsReadAnew) {
  RegionForTest region;
  auto front_end = open_for_blocks(region);
  ASSERT_TRUE(front_end.region.ok());
  auto hot =
      must(ConsolidatedRegion::create(*front_end, {.lease_ns = kNeverNs, .exclusive = true}));
  EXPECT_EQ(*hot->read(Cell{0}), 0u);
  ASSERT_TRUE(hot->add_hot_range(2048, 64).ok());
  ASSERT_TRUE(hot->write(Cell{0}, 2).ok());
  EXPECT_EQ(*hot->read(Cell{0}), 2u);
}

TEST(BlockBufferTest, MoreThanTheSystemHasIsRefused) {
  if (VERBENA_ADDRESS_SANITIZER || VERBENA_THREAD_SANITIZER) {
    GTEST_SKIP() << "the sanitizer ends a process that asks for so much";
  }
  const auto created = BlockBuffer::create(1u << 20, 1u << 30);
  EXPECT_EQ(created.status().code(), StatusCode::kLimitExceeded);
  EXPECT_THAT(created.status().message(),
              HasSubstr("no memory for 1048576 blocks of 1073741824 bytes; lower"));
}

TEST(ConsolidationTest, WhatCannotBeIsRefusedWithItsReason) {
  RegionForTest region;
  auto front_end = open_for_blocks(region);
  auto small = open_for_blocks(region, 512);
  ASSERT_TRUE(front_end.region.ok() && small.region.ok());
  const auto refused = [&](RemoteRegion& on, const ConsolidationOptions& options) {
    const auto created = ConsolidatedRegion::create(on, options);
    EXPECT_FALSE(created.ok());
    return created.status().message();
  };
  EXPECT_THAT(refused(*front_end, {.block_bytes = 1000}), HasSubstr("a power of two from 64 on"));
  EXPECT_THAT(refused(*front_end, {.block_bytes = 32}), HasSubstr("block_bytes is 32"));
  EXPECT_THAT(refused(*small, {}), HasSubstr("block_bytes is 1024, the region was opened with "
                                             "value_bytes 512"));
  EXPECT_THAT(refused(*front_end, {.blocks = 3}), HasSubstr("blocks is 3; choose 4 to"));
  EXPECT_THAT(refused(*front_end, {.modifications = 0}), HasSubstr("modifications is 0"));
  RegionForTest read_only({.size_bytes = 64, .writable = false});
  auto reader = open_for_blocks(read_only);
  EXPECT_THAT(refused(*reader, {}), HasSubstr("read only"));

  auto hot = must(ConsolidatedRegion::create(*front_end, {.lease_ns = kNeverNs}));
  EXPECT_EQ(hot->write(Cell{4089}, 1).code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(hot->read(Cell{4089}).status().message(), HasSubstr("8 bytes at offset 4089"));
  EXPECT_EQ(hot->statistics().modifications, 0u);
  front_end->close();
  EXPECT_EQ(hot->write(Cell{0}, 1).code(), StatusCode::kUnavailable);
  EXPECT_EQ(hot->flush().code(), StatusCode::kUnavailable);
}

// Writes and reads of all sizes, with few blocks: what is read is what was written, and after a
// flush it is at the back-end.
TEST(ConsolidationTest, ReadsFindWhatWasWrittenInOrder) {
  const uint64_t seed = run_seed();
  SCOPED_TRACE(seed);
  Random random(seed);
  constexpr uint64_t kBytes = 5000;  // the last block is not whole
  for (int round = 0; round < 40; ++round) {
    RegionForTest region({.size_bytes = kBytes});
    auto front_end =
        region.open({.pending = 1 + static_cast<uint32_t>(random.below(4)), .value_bytes = 256});
    ASSERT_TRUE(front_end.region.ok());
    std::vector<char> expected(kBytes);
    for (char& byte : expected) byte = static_cast<char>(random.next());
    std::memcpy(region->data(), expected.data(), kBytes);
    const ConsolidationOptions options{.block_bytes = 64u << random.below(3),
                                       .blocks = 4 + static_cast<uint32_t>(random.below(12)),
                                       .modifications = 1 + static_cast<uint32_t>(random.below(8)),
                                       .lease_ns = random.below(2) == 0 ? kNeverNs : 1,
                                       .exclusive = random.below(2) == 0};
    auto hot = must(ConsolidatedRegion::create(*front_end, options));
    if (random.below(2) == 0) {
      ASSERT_TRUE(hot->add_hot_range(500, 2000).ok());
    }
    for (int step = 0; step < 400; ++step) {
      const uint64_t size = random.below(random.below(4) == 0 ? 1000 : 40);
      const uint64_t offset = random.below(kBytes - size + 1);
      if (random.below(2) == 0) {
        for (uint64_t i = 0; i < size; ++i) expected[offset + i] = static_cast<char>(random.next());
        ASSERT_TRUE(hot->write(offset, {expected.data() + offset, size}).ok());
      } else {
        std::vector<char> found(size);
        ASSERT_TRUE(hot->read(offset, std::span<char>(found)).ok());
        ASSERT_TRUE(std::equal(found.begin(), found.end(), expected.begin() + offset))
            << "round " << round << ", step " << step;
      }
      if (random.below(50) == 0) {
        ASSERT_TRUE(random.below(2) == 0 ? hot->flush().ok() : hot->close().ok());
        ASSERT_EQ(std::memcmp(region->data(), expected.data(), kBytes), 0);
      }
    }
    ASSERT_TRUE(hot->flush().ok());
    ASSERT_EQ(std::memcmp(region->data(), expected.data(), kBytes), 0);
  }
}

// In virtual time: what is older than the lease is at the back-end when a front-end crashes.
TEST(ConsolidationTest, TheLeaseBoundsWhatACrashLoses) {
  constexpr uint64_t kLeaseNs = 100'000;
  // From a post until the bytes are there, and between two polls.
  constexpr uint64_t kOnItsWayNs = 10'000;
  for (uint64_t seed = run_seed(); seed < run_seed() + 50; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const uint64_t life_ns = 200'000 + random.below(600'000);
    SimulatedRegions regions(seed, 1, 8192, {});
    uint64_t begun_ns = 0;
    uint64_t crashed_ns = 0;
    std::vector<std::pair<uint64_t, uint64_t>> written;  // time, value
    const bool exclusive = random.below(2) == 0;
    ASSERT_TRUE(regions.run({.value_bytes = 1024}, [&](uint32_t, RemoteRegion& region) {
      auto hot = must(ConsolidatedRegion::create(
          region, {.modifications = 64, .lease_ns = kLeaseNs, .exclusive = exclusive}));
      begun_ns = now_ns();
      for (uint64_t value = 1;; ++value) {
        written.emplace_back(now_ns(), value);
        ASSERT_TRUE(hot->write(Cell{value % 100 * 80}, value).ok());
        ASSERT_TRUE(hot->write(Cell{0}, value).ok());
        if (now_ns() - begun_ns > life_ns) {
          crashed_ns = now_ns();
          regions.cluster().node(1).crash();
        }
        sleep_ns(1'000 + random.below(3'000));
        ASSERT_TRUE(hot->poll().ok());
      }
    }));
    uint64_t due = 0;
    for (const auto& [at_ns, value] : written) {
      if (at_ns + kLeaseNs + kOnItsWayNs < crashed_ns) due = value;
    }
    EXPECT_GT(due, 0u);
    EXPECT_GE(regions.at<uint64_t>(0), due);
    EXPECT_LE(regions.at<uint64_t>(0), written.back().second);
  }
}

TEST(ConsolidationTest, ALeaseThatEndedIsWrittenByAPoll) {
  SimulatedRegions regions(1, 1, 4096, {});
  ASSERT_TRUE(regions.run({.value_bytes = 1024}, [&](uint32_t, RemoteRegion& region) {
    auto hot = must(ConsolidatedRegion::create(region, {.lease_ns = 50'000}));
    ASSERT_TRUE(hot->write(Cell{0}, 7).ok());
    sleep_ns(20'000);
    ASSERT_TRUE(hot->write(Cell{1024}, 8).ok());
    ASSERT_TRUE(hot->poll().ok());
    EXPECT_EQ(region.statistics().writes, 0u);
    sleep_ns(31'000);
    ASSERT_TRUE(hot->poll().ok());
    EXPECT_EQ(region.statistics().writes, 1u) << "the older one";
    sleep_ns(20'000);
    ASSERT_TRUE(hot->poll().ok());
    EXPECT_EQ(region.statistics().writes, 2u);
    EXPECT_EQ(hot->statistics().due_flushes, 2u);
  }));
}

// Of many small writes into one page, theta become one ("memsem" III-C, figure 8).
TEST(ConsolidationTest, SmallWritesGetFaster) {
  std::vector<uint64_t> took_ns;
  for (const uint32_t theta : {1u, 16u}) {
    SimulatedRegions regions(1, 1, 1024, {});
    ASSERT_TRUE(
        regions.run({.pending = 1, .value_bytes = 1024}, [&](uint32_t, RemoteRegion& region) {
          auto hot =
              must(ConsolidatedRegion::create(region, {.modifications = theta, .exclusive = true}));
          Random random(1);
          const char bytes[32] = {};
          const uint64_t begun_ns = now_ns();
          for (int i = 0; i < 1000; ++i) {
            ASSERT_TRUE(hot->write(random.below(32) * 32, bytes).ok());
          }
          ASSERT_TRUE(hot->flush().ok());
          took_ns.push_back(now_ns() - begun_ns);
        }));
  }
  EXPECT_LT(took_ns[1] * 4, took_ns[0]);
}

}  // namespace
}  // namespace verbena::remote
