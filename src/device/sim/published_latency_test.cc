// Latencies of single operations against what was published of such RNICs, as perftest measures
// them: READ until its completion is polled, WRITE as half of a ping-pong that polls memory.
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>

#include "src/base/runtime.h"
#include "src/device/sim/cluster_for_test.h"
#include "src/device/sim/rnic_profile.h"
#include "verbena/data_path.h"

namespace verbena::sim {
namespace {

constexpr uint32_t kMeasured = 200;

double read_latency_ns(const Profile& profile) {
  Cluster cluster(2, /*seed=*/1, profile);
  Buffer here(cluster[0], 64);
  Buffer there(cluster[1], 64);
  End a(cluster[0]);
  End b(cluster[1]);
  connect(a, b);
  uint64_t took_ns = 0;
  Thread reader = cluster.start(0, [&] {
    const uint64_t begin_ns = now_ns();
    for (uint32_t i = 0; i < kMeasured; ++i) {
      ASSERT_EQ(post(a, {.opcode = IBV_WR_RDMA_READ,
                         .sges = {here.sge(0, 2)},
                         .remote_address = there.address(),
                         .rkey = there.key()}),
                0);
      ibv_wc completion;
      int polled = 0;
      while (polled == 0) polled = ibv_poll_cq(a.cq(), 1, &completion);
      ASSERT_EQ(polled, 1);
      ASSERT_EQ(completion.status, IBV_WC_SUCCESS);
    }
    took_ns = now_ns() - begin_ns;
  });
  reader.join();
  return static_cast<double>(took_ns) / kMeasured;
}

double write_latency_ns(const Profile& profile, bool inlined) {
  Cluster cluster(2, /*seed=*/1, profile);
  Buffer sources[] = {Buffer(cluster[0], 64), Buffer(cluster[1], 64)};
  // Each is registered by the thread that polls it.
  std::optional<Buffer> targets[2];
  End a(cluster[0]);
  End b(cluster[1]);
  connect(a, b);
  const auto write = [&](const End& end, size_t node, uint8_t number) {
    sources[node].at<uint8_t>(0) = number;
    ASSERT_EQ(post(end, {.opcode = IBV_WR_RDMA_WRITE,
                         .sges = {sources[node].sge(0, 2)},
                         .flags = IBV_SEND_SIGNALED | (inlined ? unsigned{IBV_SEND_INLINE} : 0u),
                         .remote_address = targets[1 - node]->address(),
                         .rkey = targets[1 - node]->key()}),
              0);
    ibv_wc completion;
    static_cast<void>(ibv_poll_cq(end.cq(), 1, &completion));
  };
  const auto wait = [&](size_t node, uint8_t number) {
    Waiter waiter;
    while (poll_word(&targets[node]->at<uint8_t>(0)) != number) waiter.idle();
  };
  const auto prepare = [&](size_t node) {
    targets[node].emplace(cluster[node], 64);
    while (!targets[1 - node].has_value()) sleep_ns(1'000);
  };
  uint64_t took_ns = 0;
  Thread ping = cluster.start(0, [&] {
    prepare(0);
    uint64_t begin_ns = 0;
    for (uint32_t i = 0; i <= kMeasured; ++i) {
      // After the first one both are there.
      if (i == 1) begin_ns = now_ns();
      write(a, 0, static_cast<uint8_t>(i + 1));
      wait(0, static_cast<uint8_t>(i + 1));
    }
    took_ns = now_ns() - begin_ns;
  });
  Thread pong = cluster.start(1, [&] {
    prepare(1);
    for (uint32_t i = 0; i <= kMeasured; ++i) {
      wait(1, static_cast<uint8_t>(i + 1));
      write(b, 1, static_cast<uint8_t>(i + 1));
    }
  });
  ping.join();
  pong.join();
  return static_cast<double>(took_ns) / (2 * kMeasured);
}

// linux-rdma/perftest, issue 131: 2 B between two hosts. The card is not named; it is of the
// generations that these profiles are of.
constexpr double kReadNs = 1910;
constexpr double kInlineWriteNs = 930;
constexpr double kWriteNs = 1320;
constexpr double kTolerance = 0.15;

TEST(PublishedLatencyTest, SingleOperationsTakeWhatWasPublished) {
  for (const std::string name : {"connectx6-hdr", "connectx7-ndr"}) {
    const Profile profile = must(load_profile(name));
    EXPECT_NEAR(read_latency_ns(profile), kReadNs, kTolerance * kReadNs) << name;
    EXPECT_NEAR(write_latency_ns(profile, true), kInlineWriteNs, kTolerance * kInlineWriteNs)
        << name;
    EXPECT_NEAR(write_latency_ns(profile, false), kWriteNs, kTolerance * kWriteNs) << name;
  }
}

// A packet's way through the chip does not keep others from theirs.
TEST(PublishedLatencyTest, TheWayThroughTheChipIsNoOccupancy) {
  Profile profile = must(load_profile("connectx6-hdr"));
  const double whole_ns = read_latency_ns(profile);
  const double ways_ns =
      2 * static_cast<double>(profile.tx_latency + profile.rx_latency) / kPsPerNs;
  profile.tx_latency = 0;
  profile.rx_latency = 0;
  EXPECT_NEAR(whole_ns - read_latency_ns(profile), ways_ns, 0.05 * ways_ns);
}

}  // namespace
}  // namespace verbena::sim
