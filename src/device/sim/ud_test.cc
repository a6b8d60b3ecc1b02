// Datagrams between simulated RNICs: what is delivered, how, and what vanishes.
#include <endian.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "src/device/sim/datagrams.h"
#include "src/device/sim/fabric.h"
#include "src/device/sim/simulated_datagram_end_for_test.h"

namespace verbena::sim {
namespace {

constexpr uint32_t kHeaderRoomBytes = 40;
constexpr size_t kDatagramAt = 8192;
constexpr size_t kDatagramReceiveBytes = kHeaderRoomBytes + 4096;

class SimulatedUdTest : public testing::Test {
 protected:
  SimulatedUdTest() { here_.fill(7, 0, 8192); }
  SendRequest request(size_t bytes, uint64_t id = 1) {
    return {.id = id, .sges = {here_.sge(0, bytes)}};
  }
  DatagramEnd::To to_b() { return {a_.handle(1), b_.qp()->qp_num}; }
  void receive(uint64_t id = 1, size_t bytes = kDatagramReceiveBytes) {
    ASSERT_EQ(post_receive(b_, id, {there_.sge(kDatagramAt, bytes)}), 0);
  }
  std::string sent() {
    cluster_.settle();
    return text_of(take_all(a_));
  }
  std::string received() {
    cluster_.settle();
    return text_of(take_all(b_));
  }
  ibv_ah* create_ah(ibv_ah_attr attributes) {
    attributes.port_num = attributes.port_num != 0 ? attributes.port_num : 1;
    return cluster_[0].control().create_ah(a_.qp()->pd, &attributes);
  }
  ibv_ah_attr global(uint32_t node) {
    ibv_ah_attr attributes{};
    attributes.dlid = static_cast<uint16_t>(node + 1);
    attributes.is_global = 1;
    attributes.sl = 3;
    attributes.grh = {.dgid = gid_of(cluster_.node(node)),
                      .flow_label = 0x12345,
                      .sgid_index = 0,
                      .hop_limit = 9,
                      .traffic_class = 0x42};
    return attributes;
  }

  Cluster cluster_{3};
  Buffer here_{cluster_[0], 64 << 10};
  Buffer there_{cluster_[1], 64 << 10};
  DatagramEnd a_{cluster_[0]};
  DatagramEnd b_{cluster_[1]};
};

TEST_F(SimulatedUdTest, DeliversEverySizeBehindTheHeadersArea) {
  const size_t mtu = test_profile().mtu_bytes;
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{64}, size_t{105}, mtu - 1, mtu}) {
    SCOPED_TRACE(bytes);
    std::memset(there_.data() + kDatagramAt, 0xee, kDatagramReceiveBytes + 64);
    receive(bytes);
    ASSERT_EQ(a_.send(request(bytes), to_b()), 0);
    EXPECT_EQ(sent(), "1 success");
    const std::vector<ibv_wc> got = take_all(b_);
    ASSERT_EQ(got.size(), 1u);
    const ibv_wc& wc = got[0];
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.opcode, IBV_WC_RECV);
    EXPECT_EQ(wc.wr_id, bytes);
    EXPECT_EQ(wc.byte_len, kHeaderRoomBytes + bytes);
    EXPECT_EQ(wc.src_qp, a_.qp()->qp_num);
    EXPECT_EQ(wc.qp_num, b_.qp()->qp_num);
    EXPECT_EQ(wc.slid, 1);
    EXPECT_EQ(wc.wc_flags, 0u);
    EXPECT_TRUE(std::memcmp(there_.data() + kDatagramAt + kHeaderRoomBytes, here_.data(), bytes) ==
                0);
    EXPECT_EQ(there_.at<uint8_t>(kDatagramAt), 0xee);  // no header came with it
    EXPECT_EQ(there_.at<uint8_t>(kDatagramAt + kHeaderRoomBytes + bytes), 0xee);
  }
}

TEST_F(SimulatedUdTest, GathersScattersAndCarriesImmediatesInline) {
  ASSERT_EQ(post_receive(b_, 1,
                         {there_.sge(kDatagramAt, 30), there_.sge(kDatagramAt + 100, 20),
                          there_.sge(kDatagramAt + 200, 200)}),
            0);
  SendRequest one = request(0);
  one.sges = {here_.sge(0, 5), here_.sge(5, 0), here_.sge(5, 95)};
  one.flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
  one.opcode = IBV_WR_SEND_WITH_IMM;
  one.immediate = 0xabcd;
  ASSERT_EQ(a_.send(one, to_b()), 0);
  cluster_.settle();
  const std::vector<ibv_wc> got = take_all(b_);
  ASSERT_EQ(text_of(got), "1 success");
  EXPECT_EQ(got[0].wc_flags, static_cast<unsigned>(IBV_WC_WITH_IMM));
  EXPECT_EQ(got[0].imm_data, 0xabcdu);
  EXPECT_EQ(std::memcmp(there_.data() + kDatagramAt + 110, here_.data(), 10), 0);
  EXPECT_EQ(std::memcmp(there_.data() + kDatagramAt + 200, here_.data() + 10, 90), 0);
}

TEST_F(SimulatedUdTest, WritesTheGlobalRouteHeader) {
  for (const bool by_lid : {true, false}) {
    ibv_ah_attr attributes = global(1);
    if (!by_lid) attributes.dlid = 0;
    ibv_ah* const handle = create_ah(attributes);
    ASSERT_NE(handle, nullptr);
    for (const size_t bytes : {size_t{0}, size_t{10}, size_t{test_profile().mtu_bytes}}) {
      receive();
      ASSERT_EQ(a_.send(request(bytes), {handle, b_.qp()->qp_num}), 0);
      cluster_.settle();
      const std::vector<ibv_wc> got = take_all(b_);
      ASSERT_EQ(text_of(got), "1 success");
      EXPECT_EQ(got[0].byte_len, kHeaderRoomBytes + bytes);
      EXPECT_EQ(got[0].wc_flags, static_cast<unsigned>(IBV_WC_GRH));
      EXPECT_EQ(got[0].sl, 3);
      EXPECT_TRUE(
          std::memcmp(there_.data() + kDatagramAt + kHeaderRoomBytes, here_.data(), bytes) == 0);
      const auto& grh = there_.at<ibv_grh>(kDatagramAt);
      EXPECT_EQ(be32toh(grh.version_tclass_flow), 0x64212345u);
      EXPECT_EQ(grh.next_hdr, 0x1b);
      EXPECT_EQ(grh.hop_limit, 9);
      EXPECT_EQ(be16toh(grh.paylen), 24 + (bytes + 3) / 4 * 4);
      const ibv_gid from = gid_of(cluster_.node(0));
      const ibv_gid to = gid_of(cluster_.node(1));
      EXPECT_EQ(std::memcmp(&grh.sgid, &from, sizeof(from)), 0);
      EXPECT_EQ(std::memcmp(&grh.dgid, &to, sizeof(to)), 0);
    }
    cluster_[0].control().destroy_ah(handle);
  }
}

TEST_F(SimulatedUdTest, WhatNobodyCanReceiveVanishes) {
  const auto vanishes = [&](const DatagramEnd::To& to) {
    EXPECT_EQ(a_.send(request(8), to), 0);
    EXPECT_EQ(sent(), "1 success");
    EXPECT_EQ(received(), "");
  };
  const uint32_t number = b_.qp()->qp_num;
  vanishes(to_b());  // no receive
  receive();
  vanishes({a_.handle(1), number, kTestQkey + 1});
  vanishes({a_.handle(1), number + 100});  // no such queue pair
  vanishes({a_.handle(1), 0});
  vanishes({a_.handle(1), 0xffffff});
  vanishes({a_.handle(2), number});    // another node
  vanishes({a_.handle(999), number});  // no node
  ibv_ah_attr wrong = global(1);
  wrong.grh.dgid.raw[15] ^= 1;
  ibv_ah* const nowhere = create_ah(wrong);
  vanishes({nowhere, number});
  cluster_[0].control().destroy_ah(nowhere);
  const End connected(cluster_[1]);
  vanishes({a_.handle(1), connected.qp()->qp_num});  // an RC one
  cluster_.simulation().fabric().set_link(cluster_.node(1), false);
  vanishes(to_b());
  cluster_.simulation().fabric().set_link(cluster_.node(1), true);
  // And the receive is still there.
  ASSERT_EQ(a_.send(request(8), to_b()), 0);
  EXPECT_EQ(received(), "1 success");
}

TEST_F(SimulatedUdTest, AQueueKeyWithItsHighestBitMeansTheOwnOne) {
  receive();
  ASSERT_EQ(a_.send(request(8), {a_.handle(1), b_.qp()->qp_num, 0x80000000}), 0);
  EXPECT_EQ(received(), "1 success");
}

TEST_F(SimulatedUdTest, AHandleMayGoOnceTheRequestIsPosted) {
  receive();
  ibv_ah_attr attributes{};
  attributes.dlid = 2;
  ibv_ah* const handle = create_ah(attributes);
  ASSERT_EQ(a_.send(request(8), {handle, b_.qp()->qp_num}), 0);
  cluster_[0].control().destroy_ah(handle);
  EXPECT_EQ(received(), "1 success");
}

TEST_F(SimulatedUdTest, ATooLongMessageFailsTheSendQueueUntilItIsSetRight) {
  const size_t mtu = test_profile().mtu_bytes;
  ASSERT_EQ(a_.send(request(8, 1), to_b()), 0);
  ASSERT_EQ(a_.send(request(mtu + 1, 2), to_b()), 0);
  EXPECT_EQ(sent(), "1 success, 2 local length error");
  EXPECT_EQ(a_.state(), IBV_QPS_SQE);
  ASSERT_EQ(a_.send(request(8, 3), to_b()), 0);
  EXPECT_EQ(sent(), "3 Work Request Flushed Error");
  // It still receives.
  ASSERT_EQ(post_receive(a_, 5, {here_.sge(kDatagramAt, kDatagramReceiveBytes)}), 0);
  ASSERT_EQ(b_.send({.id = 4, .sges = {there_.sge(0, 8)}}, {b_.handle(0), a_.qp()->qp_num}), 0);
  EXPECT_EQ(sent(), "5 success");
  EXPECT_EQ(received(), "4 success");
  ASSERT_EQ(a_.try_move_to(IBV_QPS_RTS, 0), 0);
  receive();
  ASSERT_EQ(a_.send(request(mtu, 6), to_b()), 0);
  EXPECT_EQ(sent(), "6 success");
  EXPECT_EQ(received(), "1 success");
}

TEST_F(SimulatedUdTest, ADatagramVanishesThatItsReceiveHasNoRoomFor) {
  receive(1, kHeaderRoomBytes + 7);
  receive(2);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(a_.send(request(8), to_b()), 0);
  EXPECT_EQ(sent(), "1 success, 1 success, 1 success");
  EXPECT_EQ(received(), "");
  EXPECT_EQ(b_.state(), IBV_QPS_RTS);
  ASSERT_EQ(a_.send(request(7), to_b()), 0);
  ASSERT_EQ(a_.send(request(8), to_b()), 0);
  EXPECT_EQ(received(), "1 success, 2 success");
}

TEST_F(SimulatedUdTest, ASharedReceiveThatIsTooShortEndsInAnError) {
  SharedReceiveQueue queue =
      must(SharedReceiveQueue::create(cluster_[1].domain, {.depth_wrs = 2, .max_sges = 1}));
  DatagramEnd shared(cluster_[1], {.shared_receive_queue = &queue});
  for (uint64_t id = 1; id <= 2; ++id) {
    ASSERT_EQ(post_receive(queue, id, {there_.sge(kDatagramAt, kHeaderRoomBytes + 7)}), 0);
  }
  ASSERT_EQ(a_.send(request(8), {a_.handle(1), shared.qp()->qp_num}), 0);
  EXPECT_EQ(sent(), "1 success");
  EXPECT_EQ(text_of(take_all(shared)), "1 local length error");
  EXPECT_EQ(shared.state(), IBV_QPS_ERR);
}

TEST_F(SimulatedUdTest, AReceiveIntoForeignMemoryEndsInAnError) {
  ibv_sge foreign = there_.sge(0, kDatagramReceiveBytes);
  foreign.lkey += 1;
  ASSERT_EQ(post_receive(b_, 1, {foreign}), 0);
  receive(2);
  ASSERT_EQ(a_.send(request(8), to_b()), 0);
  EXPECT_EQ(sent(), "1 success");
  EXPECT_EQ(received(), "1 local protection error, 2 Work Request Flushed Error");
  EXPECT_EQ(b_.state(), IBV_QPS_ERR);
}

TEST_F(SimulatedUdTest, TakesAsManyAsReceivesWerePostedAndNoMore) {
  for (uint64_t id = 0; id < 5; ++id) receive(id);
  for (uint64_t id = 0; id < 8; ++id) ASSERT_EQ(a_.send(request(8, id), to_b()), 0);
  EXPECT_EQ(received(), "0 success, 1 success, 2 success, 3 success, 4 success");
  receive(9);
  EXPECT_EQ(received(), "");
}

TEST_F(SimulatedUdTest, RefusesWhatDatagramsCannot) {
  const DatagramEnd::To to = to_b();
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
                                     IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD}) {
    SendRequest one = request(8);
    one.opcode = opcode;
    EXPECT_EQ(a_.send(one, to), EINVAL);
  }
  EXPECT_EQ(a_.send(request(8), {nullptr, b_.qp()->qp_num}), EINVAL);
  EXPECT_EQ(a_.send(request(8), {b_.handle(1), b_.qp()->qp_num}), EINVAL);  // of another domain
  EXPECT_EQ(a_.try_move_to(IBV_QPS_RTS, IBV_QP_ACCESS_FLAGS), EINVAL);
  // Groups, ports, and addresses that are none.
  ibv_ah_attr group = global(1);
  group.grh.dgid.raw[0] = 0xff;
  EXPECT_EQ(create_ah(group), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  ibv_ah_attr lid{};
  lid.dlid = 0xc001;
  EXPECT_EQ(create_ah(lid), nullptr);
  EXPECT_EQ(create_ah({}), nullptr);
  EXPECT_EQ(errno, EINVAL);
  lid.dlid = 2;
  lid.port_num = 2;
  EXPECT_EQ(create_ah(lid), nullptr);
}

TEST_F(SimulatedUdTest, HasTheInlineBytesOfItsProfile) {
  const auto create = [&](uint32_t inline_bytes) {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = a_.cq();
    init.qp_type = IBV_QPT_UD;
    init.cap = {.max_send_wr = 1,
                .max_recv_wr = 1,
                .max_send_sge = 1,
                .max_recv_sge = 1,
                .max_inline_data = inline_bytes};
    ibv_qp* const qp = cluster_[0].control().create_qp(a_.qp()->pd, &init);
    if (qp != nullptr) cluster_[0].control().destroy_qp(qp);
    return qp != nullptr;
  };
  const auto most = static_cast<uint32_t>(test_profile().max_inline_datagram_bytes);
  EXPECT_LT(most, test_profile().max_inline_bytes);
  EXPECT_TRUE(create(most));
  EXPECT_FALSE(create(most + 1));
}

// An address vector makes the WQE longer than a line of 64 B: what is fetched of it is two lines.
TEST_F(SimulatedUdTest, ItsAddressIsFetchedWithTheWqe) {
  End c(cluster_[0]);
  End d(cluster_[1]);
  connect(c, d);
  const auto bus_time = [&](const End& from, bool datagrams) {
    const Time before = cluster_.node(0).rnic.busy().bus_down;
    for (int i = 0; i < 100; ++i) {
      if (datagrams) {
        EXPECT_EQ(a_.send(request(8), to_b()), 0);
      } else {
        EXPECT_EQ(post(from, {.id = 1, .sges = {here_.sge(0, 8)}}), 0);
      }
      cluster_.settle();  // or one fetch brings several
      take_all(from);
    }
    return cluster_.node(0).rnic.busy().bus_down - before;
  };
  for (int i = 0; i < 100; ++i) {
    receive();
    ASSERT_EQ(post_receive(d, 1, {there_.sge(0, 64)}), 0);
  }
  const Profile& profile = test_profile();
  const Time line =
      profile.bus_time(128, profile.pcie_down_kib) - profile.bus_time(64, profile.pcie_down_kib);
  EXPECT_EQ(bus_time(a_, true), bus_time(c, false) + 100 * line);
}

}  // namespace
}  // namespace verbena::sim
