// Rates against measurements that were published, as their programs measure them. What tells
// "used" set a parameter; all else set none. docs/simulation.md has more of them.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/device/sim/cluster_for_test.h"
#include "src/device/sim/rnic_profile.h"
#include "verbena/data_path.h"

namespace verbena::sim {
namespace {

// Operations of 8 B per microsecond of threads that each have a queue pair, post `pending` of them,
// each with its doorbell, and then wait for all of these (SMART, ASPLOS 2024, test_rdma).
double batches_per_us(const Profile& profile, ibv_wr_opcode opcode, uint32_t threads,
                      uint32_t pending) {
  constexpr uint64_t kWarmNs = 200'000;
  constexpr uint64_t kTimedNs = 150'000;
  Cluster cluster(2, /*seed=*/1, profile);
  Buffer here(cluster[0], 64);
  Buffer there(cluster[1], 64);
  std::vector<std::unique_ptr<End>> near;
  std::vector<std::unique_ptr<End>> far;
  for (uint32_t i = 0; i < threads; ++i) {
    near.push_back(std::make_unique<End>(cluster[0]));
    far.push_back(std::make_unique<End>(cluster[1]));
    connect(*near.back(), *far.back());
  }
  uint64_t done = 0;
  std::vector<Thread> posting;
  const uint64_t begin_ns = now_ns() + kWarmNs;
  for (const auto& end : near) {
    posting.push_back(cluster.start(0, [&, end = end.get()] {
      for (uint64_t now = 0; now < begin_ns + kTimedNs;) {
        for (uint32_t i = 0; i < pending; ++i) {
          ASSERT_EQ(post(*end, {.id = i,
                                .opcode = opcode,
                                .sges = {here.sge(0, 8)},
                                .flags = IBV_SEND_SIGNALED,
                                .remote_address = there.address(),
                                .rkey = there.key()}),
                    0);
        }
        for (uint32_t left = pending; left > 0;) {
          ibv_wc completions[16];
          const int polled = ibv_poll_cq(end->cq(), 16, completions);
          ASSERT_GE(polled, 0);
          left -= static_cast<uint32_t>(polled);
        }
        now = now_ns();
        if (now >= begin_ns && now < begin_ns + kTimedNs) done += pending;
      }
    }));
  }
  for (Thread& thread : posting) thread.join();
  return static_cast<double>(done) * 1e3 / static_cast<double>(kTimedNs);
}

// The machines of SMART: 48 cores for 96 threads. With registers of their own, as its patched
// driver gives them, threads ring without a lock.
Profile connectx6(bool own_registers) {
  Profile profile = must(load_profile("connectx6-hdr"));
  profile.cores = 48;
  if (own_registers) {
    profile.doorbell_registers = 513;
    profile.dedicated_registers = 512;
  }
  return profile;
}

// SMART, figure 3a, a queue pair per thread in one context: 29.0 M/s with 16 threads, 39.1 with 32,
// 29.4 with 48 and 19.2 with 96. None is used.
TEST(PublishedRatesTest, ThreadsThatShareRegistersReachTheirPeakEarlyAndThenFall) {
  const auto rate = [](uint32_t threads) {
    return batches_per_us(connectx6(false), IBV_WR_RDMA_READ, threads, 8);
  };
  const double at_16 = rate(16);
  const double at_32 = rate(32);
  const double at_96 = rate(96);
  EXPECT_GT(at_32, 1.1 * at_16);
  EXPECT_LT(at_96, 0.6 * at_32);
  EXPECT_NEAR(at_96, 19.2, 0.25 * 19.2);
  // Figure 3a: four to five times as much with registers of their own.
  EXPECT_GT(batches_per_us(connectx6(true), IBV_WR_RDMA_READ, 96, 8), 4 * at_96);
}

// SMART, figure 4a: 111 M/s with 8 pending each, and 55 with 32, which is used.
TEST(PublishedRatesTest, ManyOutstandingReadsAreSlowerThanFewer) {
  const Profile profile = connectx6(true);
  const double many = batches_per_us(profile, IBV_WR_RDMA_READ, 96, 32);
  EXPECT_NEAR(many, 55.2, 0.25 * 55.2);
  EXPECT_LT(many, 0.6 * batches_per_us(profile, IBV_WR_RDMA_READ, 96, 8));
}

// ib_atomic_bw between hosts with ConnectX-5 (MT4119): 2.12 and 2.17 M/s on one word, used.
TEST(PublishedRatesTest, AtomicsOnOneWordFollowEachOther) {
  const Profile profile = must(load_profile("connectx5-edr"));
  EXPECT_NEAR(batches_per_us(profile, IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 64), 2.15, 0.1 * 2.15);
}

}  // namespace
}  // namespace verbena::sim
