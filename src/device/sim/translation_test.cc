// Translations that are not on the chip: what a fetch costs, what it brings, and what waits for it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "src/device/sim/cluster_for_test.h"
#include "src/device/sim/recorder.h"

namespace verbena::sim {
namespace {

// How far apart the messages' addresses are, on the side that posts and on the other one.
struct AddressStrides {
  size_t here = 0;
  size_t there = 0;
};

class TranslationTest : public testing::Test {
 protected:
  static constexpr size_t kBytes = 1 << 20;
  static constexpr size_t kMessages = 8;
  static constexpr uint32_t kPayload = 64;

  // Nothing stays on the chip but what was used just before.
  static Profile forgetful_profile() {
    Profile profile = test_profile();
    profile.translation_entries = 0;
    return profile;
  }
  static size_t line_bytes(const Profile& profile) {
    return profile.page_bytes * kTranslationsOfLine;
  }
  // Until the last of some messages of one queue pair is in memory.
  static Time time_of(const Profile& profile, ibv_wr_opcode opcode, AddressStrides strides) {
    Cluster cluster(2, /*seed=*/1, profile);
    Buffer here(cluster[0], kBytes);
    Buffer there(cluster[1], kBytes);
    End a(cluster[0]);
    End b(cluster[1]);
    connect(a, b);
    Recorder recorder(1 << 16);
    const Time begin = cluster.simulation().now();
    for (size_t i = 0; i < kMessages; ++i) {
      EXPECT_EQ(post_receive(b, i, {there.sge(i * strides.there, kPayload)}), 0);
    }
    cluster.simulation().record(&recorder);
    for (size_t i = 0; i < kMessages; ++i) {
      EXPECT_EQ(post(a, {.id = i,
                         .opcode = opcode,
                         .sges = {here.sge(i * strides.here, kPayload)},
                         .flags = IBV_SEND_SIGNALED,
                         .remote_address = there.address(i * strides.there),
                         .rkey = there.key()}),
                0);
    }
    cluster.settle();
    cluster.simulation().record(nullptr);
    EXPECT_EQ(take_all(a).size(), kMessages);
    Time last = begin;
    for (const Step& step : recorder.steps()) {
      const bool placed =
          step.kind == StepKind::kPlacement || step.kind == StepKind::kTranslationMiss;
      if (placed) last = std::max(last, step.end);
    }
    return last - begin;
  }
};

TEST_F(TranslationTest, WhatAQueuePairSendsReceivesAndAnswersWaitsForOneMissAfterAnother) {
  const Profile profile = forgetful_profile();
  const size_t far = line_bytes(profile);
  const struct {
    ibv_wr_opcode opcode;
    AddressStrides strides;
  } cases[] = {
      {IBV_WR_RDMA_WRITE, {.here = far}}, {IBV_WR_RDMA_WRITE, {.there = far}},
      {IBV_WR_SEND, {.here = far}},       {IBV_WR_SEND, {.there = far}},
      {IBV_WR_RDMA_READ, {.here = far}},  {IBV_WR_RDMA_READ, {.there = far}},
  };
  for (const auto& one : cases) {
    const Time known = time_of(profile, one.opcode, {});
    const Time missed = time_of(profile, one.opcode, one.strides);
    // The first one misses in both; while one waits for another, the gaps of sending pass.
    EXPECT_GT(missed, known + (kMessages - 1) * profile.pcie_read / 2)
        << one.opcode << ", " << one.strides.here << " B, " << one.strides.there << " B";
  }
}

// What comes while one waits is taken at once behind it: its own fetch must not count the others'
// way over the bus, which have ended when it begins.
TEST_F(TranslationTest, MissesOneAfterAnotherDoNotWaitForEachOtherOnTheBus) {
  Profile profile = forgetful_profile();
  const AddressStrides strides{.there = line_bytes(profile)};
  const auto missing = [&profile, strides] {
    return time_of(profile, IBV_WR_RDMA_WRITE, strides) - time_of(profile, IBV_WR_RDMA_WRITE, {});
  };
  const auto line = [&profile] { return profile.bus_time(64, profile.pcie_down_kib); };
  const Time fast = missing();
  const Time fast_line = line();
  profile.pcie_down_kib *= 32;
  EXPECT_LT(missing(), fast + kMessages * (line() - fast_line));
}

TEST_F(TranslationTest, AFetchBringsTheTranslationsOfNeighbouringPages) {
  const Profile profile = forgetful_profile();
  const Time known = time_of(profile, IBV_WR_RDMA_WRITE, {});
  EXPECT_LT(time_of(profile, IBV_WR_RDMA_WRITE, {.there = profile.page_bytes}),
            known + profile.pcie_read / 2);
}

// A table in memory of the host is as far away as other memory, whatever the chip.
TEST_F(TranslationTest, AFetchIsADmaReadOrTakesWhatTheCardsMemoryTakes) {
  Profile profile = forgetful_profile();
  const AddressStrides strides{.there = line_bytes(profile)};
  const Time near = time_of(profile, IBV_WR_RDMA_WRITE, strides);
  profile.pcie_read += 1000 * kPsPerNs;
  EXPECT_GT(time_of(profile, IBV_WR_RDMA_WRITE, strides), near + kMessages * 900 * kPsPerNs);
  profile.translation_miss = 10 * kPsPerNs;
  EXPECT_LT(time_of(profile, IBV_WR_RDMA_WRITE, strides),
            time_of(profile, IBV_WR_RDMA_WRITE, {}) + kMessages * 20 * kPsPerNs);
}

}  // namespace
}  // namespace verbena::sim
