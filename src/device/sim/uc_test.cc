// Unreliable connections between two simulated RNICs: what arrives, and what vanishes.
#include <gtest/gtest.h>

#include <cerrno>
#include <string>
#include <vector>

#include "src/device/sim/cluster_for_test.h"
#include "src/device/sim/fabric.h"

namespace verbena::sim {
namespace {

constexpr size_t kUcBufferBytes = 4 << 20;
constexpr EndOptions kUnreliable{.transport = Transport::kUc};

class SimulatedUcTest : public testing::Test {
 protected:
  SendRequest request(ibv_wr_opcode opcode, uint64_t id, size_t offset, size_t bytes) {
    return {.id = id,
            .opcode = opcode,
            .sges = {here_.sge(offset, bytes)},
            .remote_address = there_.address(offset),
            .rkey = there_.key(),
            .immediate = 77};
  }
  std::string sent() {
    cluster_.settle();
    return text_of(take_all(a_));
  }
  std::string received() {
    cluster_.settle();
    return text_of(take_all(b_));
  }
  int modify(const End& end, ibv_qp_state state, int mask) {
    ibv_qp_attr attributes{};
    attributes.qp_state = state;
    attributes.port_num = 1;
    attributes.path_mtu = IBV_MTU_2048;
    attributes.ah_attr.dlid = 2;
    attributes.dest_qp_num = b_.qp()->qp_num;
    return cluster_[0].control().modify_qp(end.qp(), &attributes, IBV_QP_STATE | mask);
  }
  static constexpr int kToReady = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;

  Cluster cluster_;
  Buffer here_{cluster_[0], kUcBufferBytes};
  Buffer there_{cluster_[1], kUcBufferBytes};
  End a_{cluster_[0], kUnreliable};
  End b_{cluster_[1], kUnreliable};
};

TEST_F(SimulatedUcTest, CarriesSendsAndWritesOfAllSizes) {
  connect(a_, b_);
  const size_t mtu = test_profile().mtu_bytes;
  uint64_t seed = 0;
  for (const size_t bytes : {size_t{1}, size_t{64}, mtu - 1, mtu, mtu + 1, 17 * mtu + 3}) {
    SCOPED_TRACE(testing::Message() << bytes << " bytes");
    here_.fill(++seed, 0, bytes);
    ASSERT_EQ(post_receive(b_, 3, {there_.sge(0, bytes)}), 0);
    ASSERT_EQ(post(a_, request(IBV_WR_SEND_WITH_IMM, 1, 0, bytes)), 0);
    ASSERT_EQ(sent(), "1 success");
    const std::vector<ibv_wc> got = take_all(b_);
    ASSERT_EQ(text_of(got), "3 success");
    EXPECT_EQ(got[0].byte_len, bytes);
    EXPECT_EQ(got[0].imm_data, 77u);
    EXPECT_EQ(got[0].src_qp, a_.qp()->qp_num);
    EXPECT_TRUE(there_.has(seed, 0, bytes));

    here_.fill(++seed, 0, bytes);
    ASSERT_EQ(post(a_, request(IBV_WR_RDMA_WRITE, 2, 0, bytes)), 0);
    ASSERT_EQ(sent(), "2 success");
    EXPECT_TRUE(there_.has(seed, 0, bytes));

    here_.fill(++seed, 0, bytes);
    ASSERT_EQ(post_receive(b_, 4, {}), 0);
    ASSERT_EQ(post(a_, request(IBV_WR_RDMA_WRITE_WITH_IMM, 5, 0, bytes)), 0);
    ASSERT_EQ(sent(), "5 success");
    const std::vector<ibv_wc> told = take_all(b_);
    ASSERT_EQ(text_of(told), "4 success");
    EXPECT_EQ(told[0].opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    EXPECT_TRUE(there_.has(seed, 0, bytes));
  }
}

TEST_F(SimulatedUcTest, NothingGoesBack) {
  connect(a_, b_);
  Fabric& fabric = cluster_.simulation().fabric();
  for (uint64_t id = 0; id < 20; ++id) {
    ASSERT_EQ(post(a_, request(IBV_WR_RDMA_WRITE, id, 0, 64)), 0);
  }
  cluster_.settle();
  EXPECT_EQ(fabric.delivered(), 20u);
}

// Its completion tells no more than that the RNIC has sent it.
TEST_F(SimulatedUcTest, ASendIsOverBeforeItArrives) {
  connect(a_, b_);
  End c(cluster_[0]);
  End d(cluster_[1]);
  connect(c, d);
  uint64_t took_ns[2];
  const End* const ends[] = {&a_, &c};
  for (int i = 0; i < 2; ++i) {
    const uint64_t begin_ns = now_ns();
    ASSERT_EQ(post(*ends[i], request(IBV_WR_RDMA_WRITE, 1, 0, 8)), 0);
    while (take_all(*ends[i]).empty()) cluster_.pass(10);
    took_ns[i] = now_ns() - begin_ns;
  }
  const Profile& profile = test_profile();
  // The way over and that of the acknowledgement.
  EXPECT_LT(took_ns[0] + 2 * (profile.switch_latency + 2 * profile.cable) / kPsPerNs, took_ns[1]);
}

TEST_F(SimulatedUcTest, WhatThePeerCannotTakeVanishes) {
  connect(a_, b_);
  for (const ibv_wr_opcode opcode : {IBV_WR_SEND, IBV_WR_RDMA_WRITE_WITH_IMM}) {
    ASSERT_EQ(post(a_, request(opcode, 1, 0, 5000)), 0);  // no receive
    EXPECT_EQ(sent(), "1 success");
  }
  ASSERT_EQ(post_receive(b_, 5, {there_.sge(0, 64)}), 0);
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM}) {
    SendRequest wrong = request(opcode, 2, 0, 8);
    wrong.rkey += 1;
    ASSERT_EQ(post(a_, wrong), 0);
    EXPECT_EQ(sent(), "2 success");
  }
  EXPECT_EQ(received(), "");
  EXPECT_EQ(a_.state(), IBV_QPS_RTS);
  EXPECT_EQ(b_.state(), IBV_QPS_RTS);
  ASSERT_EQ(post(a_, request(IBV_WR_SEND, 3, 0, 8)), 0);
  EXPECT_EQ(received(), "5 success");
}

TEST_F(SimulatedUcTest, AMessageThatIsLongerThanItsReceiveFailsTheReceiver) {
  connect(a_, b_);
  ASSERT_EQ(post_receive(b_, 5, {there_.sge(0, 64)}), 0);
  ASSERT_EQ(post(a_, request(IBV_WR_SEND, 1, 0, 65)), 0);
  EXPECT_EQ(sent(), "1 success");
  EXPECT_EQ(received(), "5 local length error");
  EXPECT_EQ(b_.state(), IBV_QPS_ERR);
  EXPECT_EQ(a_.state(), IBV_QPS_RTS);
}

TEST_F(SimulatedUcTest, AReceiveIntoForeignMemoryFailsTheReceiver) {
  connect(a_, b_);
  ibv_sge foreign = there_.sge(0, 64);
  foreign.lkey += 1;
  ASSERT_EQ(post_receive(b_, 5, {foreign}), 0);
  ASSERT_EQ(post(a_, request(IBV_WR_SEND, 1, 0, 8)), 0);
  EXPECT_EQ(sent(), "1 success");
  EXPECT_EQ(received(), "5 local protection error");
  EXPECT_EQ(b_.state(), IBV_QPS_ERR);
  EXPECT_EQ(a_.state(), IBV_QPS_RTS);
}

TEST_F(SimulatedUcTest, APeerThatIsGoneIsNotNoticed) {
  connect(a_, b_);
  cluster_.simulation().fabric().set_link(cluster_.node(1), false);
  ASSERT_EQ(post(a_, request(IBV_WR_SEND, 1, 0, 8)), 0);
  EXPECT_EQ(sent(), "1 success");
  cluster_.simulation().fabric().set_link(cluster_.node(1), true);
  cluster_.node(1).crash();
  ASSERT_EQ(post(a_, request(IBV_WR_RDMA_WRITE, 2, 0, 8)), 0);
  EXPECT_EQ(sent(), "2 success");
}

// Whole messages or none: of one that lost a packet nothing is told, and its receive is the next
// one's.
TEST_F(SimulatedUcTest, AMessageThatLostAPacketIsDroppedAndGivesItsReceiveOn) {
  connect(a_, b_);
  constexpr uint64_t kMessages = 400;
  const size_t mtu = test_profile().mtu_bytes;
  cluster_.simulation().fabric().set_faults({.loss_ppm = 100'000});
  uint64_t receives = 0;
  std::vector<uint32_t> arrived;
  uint64_t told = 0;
  for (uint32_t i = 0; i < kMessages; ++i) {
    // Sends of four packets, and between them writes, with and without an immediate.
    for (; receives < told + 2; ++receives) {
      ASSERT_EQ(post_receive(b_, receives, {there_.sge(0, 4 * mtu)}), 0);
    }
    here_.fill(i, 0, 4 * mtu);
    const ibv_wr_opcode opcode = i % 3 == 2   ? IBV_WR_RDMA_WRITE_WITH_IMM
                                 : i % 7 == 3 ? IBV_WR_RDMA_WRITE
                                              : IBV_WR_SEND_WITH_IMM;
    SendRequest one = request(opcode, i, 0, 4 * mtu);
    one.immediate = i;
    ASSERT_EQ(post(a_, one), 0);
    ASSERT_EQ(sent(), std::to_string(i) + " success");
    for (const ibv_wc& wc : take_all(b_)) {
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
      ASSERT_EQ(wc.wr_id, told);  // receives are used in their order, none is left out
      ASSERT_EQ(wc.imm_data, i);
      ASSERT_EQ(wc.byte_len, 4 * mtu);
      ASSERT_TRUE(there_.has(i, 0, 4 * mtu));
      ++told;
    }
  }
  // 0.9 to the fourth of those that tell, which are six of seven.
  EXPECT_GT(told, kMessages / 3);
  EXPECT_LT(told, kMessages * 3 / 4);
}

TEST_F(SimulatedUcTest, AReceiveOfALostMessageIsFlushedInTheEnd) {
  SharedReceiveQueue queue =
      must(SharedReceiveQueue::create(cluster_[1].domain, {.depth_wrs = 1, .max_sges = 1}));
  EndOptions shared = kUnreliable;
  shared.shared_receive_queue = &queue;
  End own(cluster_[1], kUnreliable);
  End other(cluster_[1], shared);
  connect(a_, other);
  ASSERT_EQ(post_receive(queue, 1, {there_.sge(0, 1 << 20)}), 0);
  ASSERT_EQ(post(a_, request(IBV_WR_SEND, 1, 0, 1 << 20)), 0);
  cluster_.pass(30'000);
  cluster_.simulation().fabric().set_link(cluster_.node(1), false);
  EXPECT_EQ(sent(), "1 success");
  cluster_.simulation().fabric().set_link(cluster_.node(1), true);
  EXPECT_EQ(post_receive(queue, 2, {there_.sge(0, 64)}), ENOMEM);  // it is taken
  must(other.queue_pair().to_error());
  cluster_.settle();
  EXPECT_EQ(text_of(take_all(other)), "1 Work Request Flushed Error");
  EXPECT_EQ(post_receive(queue, 2, {there_.sge(0, 64)}), 0);
}

TEST_F(SimulatedUcTest, AfterAResetOfOneEndTheOtherOneIsHeard) {
  connect(a_, b_);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(post(a_, request(IBV_WR_RDMA_WRITE, 1, 0, 8)), 0);
  cluster_.settle();
  for (End* end : {&a_, &b_}) {
    end->reset();
    end->connect((end == &a_ ? b_ : a_).address());
    here_.fill(5, 64, 64);
    there_.fill(6, 64, 64);
    ASSERT_EQ(post(a_, request(IBV_WR_RDMA_WRITE, 1, 64, 64)), 0);
    cluster_.settle();
    EXPECT_TRUE(there_.has(5, 64, 64));
  }
}

TEST_F(SimulatedUcTest, AnErrorOfItsOwnFailsTheSendQueueOnly) {
  connect(a_, b_);
  for (int round = 0; round < 3; ++round) {
    SCOPED_TRACE(round);
    ASSERT_EQ(post(a_, request(IBV_WR_RDMA_WRITE, 1, 0, 5000)), 0);
    SendRequest wrong = request(IBV_WR_SEND, 2, 0, 8);
    wrong.sges[0].lkey += 1;
    ASSERT_EQ(post(a_, wrong), 0);
    ASSERT_EQ(post(a_, request(IBV_WR_RDMA_WRITE, 3, 0, 5000)), 0);
    EXPECT_EQ(sent(), "1 success, 2 local protection error, 3 Work Request Flushed Error");
    EXPECT_EQ(a_.state(), IBV_QPS_SQE);
    ASSERT_EQ(post(a_, request(IBV_WR_RDMA_WRITE, 4, 0, 8)), 0);
    EXPECT_EQ(sent(), "4 Work Request Flushed Error");
    // It still receives.
    ASSERT_EQ(post_receive(a_, 7, {here_.sge(0, 64)}), 0);
    ASSERT_EQ(post(b_, {.id = 8, .sges = {there_.sge(0, 8)}}), 0);
    EXPECT_EQ(sent(), "7 success");
    EXPECT_EQ(received(), "8 success");
    ASSERT_EQ(modify(a_, IBV_QPS_RTS, 0), 0);
    here_.fill(9, 0, 5000);
    ASSERT_EQ(post(a_, request(IBV_WR_RDMA_WRITE, 5, 0, 5000)), 0);
    EXPECT_EQ(sent(), "5 success");
    EXPECT_TRUE(there_.has(9, 0, 5000));
  }
}

// Doorbells and fetches that were on their way when it failed mean nothing once it is set right.
TEST_F(SimulatedUcTest, WhatWasUnderWayWhenTheSendQueueFailedStaysOver) {
  connect(a_, b_);
  for (uint64_t wait_ns = 0; wait_ns < 2'000; wait_ns += 50) {
    SCOPED_TRACE(wait_ns);
    SendRequest wrong = request(IBV_WR_RDMA_WRITE, 1, 0, 8);
    wrong.sges[0].lkey += 1;
    ASSERT_EQ(post(a_, wrong), 0);
    cluster_.pass(wait_ns);
    if (a_.state() == IBV_QPS_RTS) {
      for (uint64_t id = 2; id < 6; ++id) {
        ASSERT_EQ(post(a_, request(IBV_WR_RDMA_WRITE, id, 0, 4096)), 0);
      }
    }
    for (int i = 0; i < 1000 && a_.state() != IBV_QPS_SQE; ++i) cluster_.pass(10);
    ASSERT_EQ(modify(a_, IBV_QPS_RTS, 0), 0);
    here_.fill(wait_ns, 0, 4096);
    ASSERT_EQ(post(a_, request(IBV_WR_RDMA_WRITE, 9, 0, 4096)), 0);
    cluster_.settle();
    const std::vector<ibv_wc> done = take_all(a_);
    ASSERT_FALSE(done.empty());
    EXPECT_EQ(text_of({done.back()}), "9 success");
    for (size_t i = 0; i + 1 < done.size(); ++i) EXPECT_NE(done[i].status, IBV_WC_SUCCESS);
    EXPECT_TRUE(there_.has(wait_ns, 0, 4096));
  }
}

TEST_F(SimulatedUcTest, RefusesWhatOnlyReliableOnesCan) {
  connect(a_, b_);
  EXPECT_EQ(post(a_, request(IBV_WR_RDMA_READ, 1, 0, 8)), EINVAL);
  EXPECT_EQ(post(a_, request(IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 0, 8)), EINVAL);
  EXPECT_EQ(post(a_, request(IBV_WR_ATOMIC_CMP_AND_SWP, 1, 0, 8)), EINVAL);
  End c(cluster_[0], kUnreliable);
  EXPECT_EQ(modify(c, IBV_QPS_RTR, kToReady | IBV_QP_MIN_RNR_TIMER), EINVAL);
  EXPECT_NE(std::string(cluster_[0].control().last_error()).find("UC"), std::string::npos);
  EXPECT_EQ(modify(c, IBV_QPS_RTR, IBV_QP_AV), EINVAL);
  ASSERT_EQ(modify(c, IBV_QPS_RTR, kToReady), 0);
  EXPECT_EQ(modify(c, IBV_QPS_RTS, IBV_QP_SQ_PSN | IBV_QP_TIMEOUT), EINVAL);
  EXPECT_EQ(modify(c, IBV_QPS_RTS, IBV_QP_SQ_PSN), 0);
}

TEST_F(SimulatedUcTest, AReliableQueuePairDoesNotHearIt) {
  End reliable(cluster_[1]);
  a_.connect(reliable.address());
  reliable.connect(a_.address());
  ASSERT_EQ(post_receive(reliable, 1, {there_.sge(0, 64)}), 0);
  ASSERT_EQ(post(a_, request(IBV_WR_SEND, 1, 0, 8)), 0);
  EXPECT_EQ(sent(), "1 success");
  EXPECT_TRUE(take_all(reliable).empty());
}

}  // namespace
}  // namespace verbena::sim
