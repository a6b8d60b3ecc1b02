#include "src/device/sim/fabric.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "src/device/sim/cluster_for_test.h"

namespace verbena::sim {
namespace {

constexpr uint32_t kPayloadBytes = 1024;
// Base transport header, and that of the first packet of a WRITE (IBTA volume 1, chapter 9).
constexpr uint64_t kWriteHeaderBytes = 12 + 16;

// A cluster whose switch has a FIFO per input, or none.
Profile with_input_queues(bool input_queues) {
  Profile profile = test_profile();
  profile.switch_input_queues = input_queues ? 1 : 0;
  return profile;
}

Time wire_time() {
  const Profile& profile = test_profile();
  return profile.link_time(kPayloadBytes + kWriteHeaderBytes + profile.packet_overhead_bytes);
}
Time one_way() { return wire_time() + 2 * test_profile().cable + test_profile().switch_latency; }

class FabricTest : public testing::TestWithParam<bool> {
 protected:
  Fabric& fabric() { return cluster_.simulation().fabric(); }

  // To a queue pair that does not exist: it arrives, and that is all.
  void send(size_t from, size_t to) {
    Packet* const packet = fabric().allocate();
    packet->from = &cluster_.node(from);
    packet->to = &cluster_.node(to);
    packet->payload_bytes = kPayloadBytes;
    packet->last = true;
    fabric().send(packet);
  }
  // How many have arrived before `time`, and just after it.
  void expect_arrival_at(Time time, uint64_t before, uint64_t after) {
    Simulation& simulation = cluster_.simulation();
    looks_.push_back(std::make_unique<Look>(Look{&fabric(), time, before}));
    looks_.push_back(std::make_unique<Look>(Look{&fabric(), time, after}));
    const auto look = [](void* object, uint64_t) {
      const Look& one = *static_cast<Look*>(object);
      EXPECT_EQ(one.fabric->delivered(), one.expected) << "at " << one.time;
    };
    simulation.at(time - 1, look, looks_[looks_.size() - 2].get());
    simulation.at(time + 1, look, looks_.back().get());
  }

  struct Look {
    Fabric* fabric;
    Time time;
    uint64_t expected;
  };
  Cluster cluster_{4, 1, with_input_queues(GetParam())};
  std::vector<std::unique_ptr<Look>> looks_;
};

INSTANTIATE_TEST_SUITE_P(Switch, FabricTest, testing::Bool(), [](const auto& info) {
  return info.param ? "InputQueues" : "OutputQueues";
});

TEST_P(FabricTest, ALonePacketTakesTheSumOfItsParts) {
  send(0, 1);
  expect_arrival_at(one_way(), 0, 1);
  cluster_.settle();
  EXPECT_EQ(fabric().delivered(), 1u);
}

TEST_P(FabricTest, PacketsOfOneNodeFollowEachOther) {
  for (int i = 0; i < 3; ++i) send(0, 1);
  for (uint64_t i = 0; i < 3; ++i) expect_arrival_at(one_way() + i * wire_time(), i, i + 1);
  cluster_.settle();
}

TEST_P(FabricTest, PacketsToOneNodeShareItsLink) {
  send(0, 3);
  send(1, 3);
  send(2, 3);
  for (uint64_t i = 0; i < 3; ++i) expect_arrival_at(one_way() + i * wire_time(), i, i + 1);
  cluster_.settle();
}

TEST_P(FabricTest, DifferentPairsDoNotDisturbEachOther) {
  send(0, 1);
  send(2, 3);
  expect_arrival_at(one_way(), 0, 2);
  cluster_.settle();
}

// Node 0 sends first to the busy node 3 and then to the idle node 1.
TEST_P(FabricTest, OnlyAnInputQueueLetsItsHeadBlockWhatIsBehind) {
  send(2, 3);
  send(1, 3);
  send(0, 3);
  send(0, 1);
  const bool blocked = GetParam();
  // Node 3 gets one after the other; node 1 its own as soon as its head can leave.
  expect_arrival_at(one_way(), 0, 1);
  expect_arrival_at(one_way() + wire_time(), 1, blocked ? 2 : 3);
  cluster_.settle();
  EXPECT_EQ(fabric().delivered(), 4u);
}

TEST_P(FabricTest, AllIsDeliveredUnderRandomLoad) {
  const uint64_t seed = run_seed();
  SCOPED_TRACE(testing::Message() << "VERBENA_SEED=" << seed);
  Random random(seed);
  constexpr uint64_t kPackets = 5000;
  for (uint64_t i = 0; i < kPackets; ++i) {
    send(random.below(4), random.below(4));
    if (random.below(4) == 0) cluster_.pass(random.below(1000));
  }
  cluster_.settle();
  EXPECT_EQ(fabric().delivered(), kPackets);
  EXPECT_EQ(fabric().lost(), 0u);
}

TEST_P(FabricTest, LosesTheShareThatItIsTold) {
  fabric().set_faults({.loss_ppm = 100'000});
  constexpr uint64_t kPackets = 20'000;
  for (uint64_t i = 0; i < kPackets; ++i) send(i % 4, (i + 1) % 4);
  cluster_.settle();
  EXPECT_EQ(fabric().delivered() + fabric().lost(), kPackets);
  EXPECT_NEAR(static_cast<double>(fabric().lost()), kPackets / 10.0, kPackets / 100.0);
}

TEST_P(FabricTest, DelaysByUpToWhatItIsTold) {
  fabric().set_faults({.delay_ppm = 1'000'000, .delay_most = 10'000 * kPsPerNs});
  uint64_t longest = 0;
  for (int i = 0; i < 200; ++i) {
    const Time begin = cluster_.simulation().now();
    send(0, 1);
    cluster_.settle();
    const Time took = cluster_.simulation().now() - begin;
    EXPECT_GE(took, one_way());
    EXPECT_LE(took, one_way() + 10'000 * kPsPerNs);
    longest = std::max(longest, took);
  }
  EXPECT_GT(longest, 5'000 * kPsPerNs);
}

TEST_P(FabricTest, APortThatIsDownLosesBothDirections) {
  fabric().set_link(cluster_.node(1), false);
  send(0, 1);
  send(1, 0);
  send(2, 3);
  cluster_.settle();
  EXPECT_EQ(fabric().delivered(), 1u);
  EXPECT_EQ(fabric().lost(), 2u);
  fabric().set_link(cluster_.node(1), true);
  send(0, 1);
  cluster_.settle();
  EXPECT_EQ(fabric().delivered(), 2u);
}

TEST_P(FabricTest, WhatIsOnItsWayIsLostWhenThePortGoesDown) {
  send(0, 1);
  cluster_.simulation().at(
      one_way() / 2,
      [](void* node, uint64_t) {
        static_cast<Node*>(node)->simulation.fabric().set_link(*static_cast<Node*>(node), false);
      },
      &cluster_.node(1));
  cluster_.settle();
  EXPECT_EQ(fabric().delivered(), 0u);
  EXPECT_EQ(fabric().lost(), 1u);
}

// Credits: what a link has taken and the switch has not passed on holds up its sender.
TEST_P(FabricTest, AFullLinkHoldsUpItsSender) {
  const Node& sender = cluster_.node(0);
  ASSERT_TRUE(fabric().ready(sender));
  uint64_t sent = 0;
  while (fabric().ready(sender)) {
    send(0, 3);
    ASSERT_LT(++sent, 1000u);
  }
  EXPECT_GE(sent * (kPayloadBytes + kWriteHeaderBytes), test_profile().port_buffer_bytes);
  EXPECT_TRUE(fabric().ready(cluster_.node(1)));
  cluster_.settle();
  EXPECT_TRUE(fabric().ready(sender));
  EXPECT_EQ(fabric().delivered(), sent);
}

}  // namespace
}  // namespace verbena::sim
