// WQEs that are not completed: the chip keeps so many, and reads others once more.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "src/device/sim/cluster_for_test.h"
#include "src/device/sim/rnic_profile.h"

namespace verbena::sim {
namespace {

constexpr uint32_t kPairs = 8;
constexpr uint32_t kPending = 16;  // of each
constexpr uint32_t kAll = kPairs * kPending;

class WqeCacheTest : public testing::Test {
 protected:
  static Profile profile(uint64_t cache) {
    Profile profile = must(load_profile("connectx6-hdr"));
    profile.jitter_percent = 0;
    // Faster than responses come, so that all are outstanding.
    profile.post_wqe = 0;
    profile.post_blueflame_64 = 0;
    profile.wqe_cache_entries = cache;
    return profile;
  }

  struct Nodes {
    explicit Nodes(const Profile& profile) : cluster(2, /*seed=*/1, profile) {
      for (uint32_t i = 0; i < kPairs; ++i) {
        near.push_back(std::make_unique<End>(cluster[0]));
        far.push_back(std::make_unique<End>(cluster[1]));
        connect(*near.back(), *far.back());
      }
    }
    void post_to(const End& end, ibv_wr_opcode opcode, unsigned flags) {
      ASSERT_EQ(post(end, {.opcode = opcode,
                           .sges = {here.sge(0, 8)},
                           .flags = flags,
                           .remote_address = there.address(),
                           .rkey = there.key()}),
                0);
    }
    // How long so many operations of each queue pair take, all posted at once: the last one of a
    // queue pair asks for a completion, and others if `signaled`.
    uint64_t took_ns(ibv_wr_opcode opcode, uint32_t of_each, bool signaled) {
      uint64_t took = 0;
      Thread thread = cluster.start(0, [&] {
        const uint64_t begin_ns = now_ns();
        for (uint32_t i = 0; i < of_each; ++i) {
          const bool asks = signaled || i + 1 == of_each;
          for (const auto& end : near)
            post_to(*end, opcode, asks ? unsigned{IBV_SEND_SIGNALED} : 0u);
        }
        for (const auto& end : near) {
          for (uint32_t left = signaled ? of_each : 1; left > 0;) {
            ibv_wc completions[kPending];
            const int polled = ibv_poll_cq(end->cq(), kPending, completions);
            ASSERT_GE(polled, 0);
            left -= static_cast<uint32_t>(polled);
          }
        }
        took = now_ns() - begin_ns;
      });
      thread.join();
      cluster.settle();
      return took;
    }

    Cluster cluster;
    Buffer here{cluster[0], 64};
    Buffer there{cluster[1], 64};
    std::vector<std::unique_ptr<End>> near;
    std::vector<std::unique_ptr<End>> far;
  };

  static uint64_t took_ns(uint64_t cache, ibv_wr_opcode opcode, uint32_t of_each,
                          bool signaled = true) {
    return Nodes(profile(cache)).took_ns(opcode, of_each, signaled);
  }
};

TEST_F(WqeCacheTest, MoreThanTheChipHasAreReadOnceMore) {
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE}) {
    const uint64_t all_ns = took_ns(0, opcode, kPending);
    EXPECT_EQ(took_ns(kAll, opcode, kPending), all_ns) << opcode;
    const uint64_t few_ns = took_ns(2, opcode, kPending);
    EXPECT_GT(few_ns, all_ns) << opcode;
    // What waits for its WQE waits for a DMA read, much of which passes beside others.
    const Profile with = profile(2);
    EXPECT_GT(few_ns - all_ns, with.pcie_read / kPsPerNs / 2) << opcode;
  }
}

TEST_F(WqeCacheTest, WhatAsksForNoCompletionIsNotReadAgain) {
  const uint64_t all_ns = took_ns(0, IBV_WR_RDMA_WRITE, kPending, /*signaled=*/false);
  const uint64_t few_ns = took_ns(2, IBV_WR_RDMA_WRITE, kPending, /*signaled=*/false);
  const uint64_t signaled_ns = took_ns(2, IBV_WR_RDMA_WRITE, kPending);
  EXPECT_LT(few_ns - all_ns, signaled_ns - all_ns);
}

// Sending and completing is the work of the same units: even where the receiving side has time,
// what is read again keeps others from being sent.
TEST_F(WqeCacheTest, WhatIsReadAgainDelaysWhatIsSent) {
  const auto took = [](uint64_t cache) {
    Profile slow = profile(cache);
    slow.tx_message = 100 * kPsPerNs;
    slow.pcie_read = 360 * kPsPerNs;
    slow.wqe_misses_at_once = 4;
    return Nodes(slow).took_ns(IBV_WR_RDMA_READ, kPending, true);
  };
  EXPECT_GT(took(2) - took(0), kAll / 2 * uint64_t{360 / 4});
}

// What ends by an error or a reset takes no place any more: few READs afterwards miss nothing.
TEST_F(WqeCacheTest, QueuePairsThatEndGiveTheirPlacesBack) {
  const auto afterwards_ns = [](uint64_t cache) {
    Nodes nodes(profile(cache));
    for (int round = 0; round < 4; ++round) {
      for (uint32_t i = 0; i < kPairs; ++i) {
        for (uint32_t n = 0; n < kPending; ++n) {
          nodes.post_to(*nodes.near[i], IBV_WR_RDMA_READ, IBV_SEND_SIGNALED);
        }
      }
      nodes.cluster.pass(400 + 100 * static_cast<uint64_t>(round));
      for (uint32_t i = 0; i < kPairs; ++i) {
        if (i % 2 == 0) must(nodes.near[i]->queue_pair().to_error());
        nodes.near[i]->reset();
        nodes.far[i]->reset();
        connect(*nodes.near[i], *nodes.far[i]);
      }
      nodes.cluster.settle();
    }
    return nodes.took_ns(IBV_WR_RDMA_READ, 1, true);
  };
  EXPECT_EQ(afterwards_ns(kPairs), afterwards_ns(0));
}

}  // namespace
}  // namespace verbena::sim
