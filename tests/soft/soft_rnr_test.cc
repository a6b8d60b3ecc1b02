// A receiver that is not ready: the sender waits as the InfiniBand specification says, and gives up
// when it says so.
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <signal.h>

#include <cstdint>
#include <vector>

#include "src/base/runtime.h"
#include "src/device/verbs_control.h"
#include "tests/soft/places.h"
#include "tests/soft/process.h"
#include "tests/soft/responder.h"
#include "tests/soft/verbs.h"

namespace verbena::soft_test {
namespace {

class RnrTest : public testing::TestWithParam<PlaceAndDepth> {
 protected:
  void start(const ReliabilityOptions& options = {}) {
    const auto [place, srq_depth] = GetParam();
    responder_.emplace(place, ResponderOptions{.srq_depth = srq_depth});
    responder_->connect(end_, options);
    responder_->add_buffer(8192);
  }
  int send(uint64_t id) { return post(end_.qp(), {.id = id, .sges = {buffer_.sge(0, 8)}}); }

  Node node_;
  Buffer buffer_{node_.domain, 8192};
  End end_{node_};
  std::optional<Responder> responder_;
};

INSTANTIATE_TEST_SUITE_P(Places, RnrTest, all_places_and_receives(), name_by_place_and_receives);

TEST_P(RnrTest, ASendWaitsUntilAReceiveIsPosted) {
  start();
  ASSERT_EQ(send(1), 0);
  EXPECT_TRUE(is_empty(end_.cq()));
  EXPECT_TRUE(responder_->is_empty());
  ASSERT_EQ(responder_->post_receive(10, {{0, 0, 64}}), 0);
  EXPECT_EQ(wait_for_one(end_.cq()).status, IBV_WC_SUCCESS);
  EXPECT_EQ(responder_->wait_for_one().wr_id, 10u);
}

TEST_P(RnrTest, AWriteWithImmediateWaitsBeforeItWrites) {
  start();
  const Responder::Memory remote = responder_->add_buffer(64);
  buffer_.at<uint64_t>(0) = 7;
  ASSERT_EQ(post(end_.qp(), {.opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                             .sges = {buffer_.sge(0, 8)},
                             .remote_address = remote.address,
                             .rkey = remote.key}),
            0);
  EXPECT_TRUE(is_empty(end_.cq()));
  EXPECT_EQ(responder_->load(1, 0), 0u);
  ASSERT_EQ(responder_->post_receive(10, {}), 0);
  EXPECT_EQ(wait_for_one(end_.cq()).status, IBV_WC_SUCCESS);
  EXPECT_EQ(responder_->load(1, 0), 7u);
}

TEST_P(RnrTest, WorkBehindAWaitingSendWaitsToo) {
  start();
  const Responder::Memory remote = responder_->add_buffer(64);
  ASSERT_EQ(send(1), 0);
  buffer_.at<uint64_t>(0) = 7;
  ASSERT_EQ(post(end_.qp(), {.id = 2,
                             .opcode = IBV_WR_RDMA_WRITE,
                             .sges = {buffer_.sge(0, 8)},
                             .remote_address = remote.address,
                             .rkey = remote.key}),
            0);
  ASSERT_EQ(send(3), 0);
  EXPECT_TRUE(is_empty(end_.cq()));
  EXPECT_EQ(responder_->load(1, 0), 0u);
  for (uint64_t id = 0; id < 2; ++id) {
    ASSERT_EQ(responder_->post_receive(id, {{0, 0, 64}}), 0);
  }
  const std::vector<ibv_wc> got = wait_for(end_.cq(), 3);
  ASSERT_EQ(got.size(), 3u);
  for (uint64_t id = 1; id <= 3; ++id) EXPECT_EQ(got[id - 1].wr_id, id);
  EXPECT_EQ(responder_->load(1, 0), 7u);
}

TEST_P(RnrTest, RetriesEndWithAnErrorAndFlush) {
  start(kImpatient);
  ASSERT_EQ(send(1), 0);
  ASSERT_EQ(send(2), 0);
  ASSERT_EQ(send(3), 0);
  const std::vector<ibv_wc> got = wait_for(end_.cq(), 3);
  ASSERT_EQ(got.size(), 3u);
  EXPECT_EQ(got[0].status, IBV_WC_RNR_RETRY_EXC_ERR);
  EXPECT_EQ(got[0].wr_id, 1u);
  EXPECT_EQ(got[1].status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(got[2].status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(state_of(node_, end_.qp()), IBV_QPS_ERR);
  // The responder knows of no error.
  EXPECT_EQ(responder_->state(), IBV_QPS_RTS);
}

// No retries: the first NAK ends it, without waiting for the responder's timer (0 is 655 ms).
TEST_P(RnrTest, WithoutRetriesTheFirstLookDecides) {
  start({.rnr_retry_count = 0, .min_rnr_timer = 0});
  ASSERT_EQ(send(1), 0);
  ibv_wc wc;
  ASSERT_EQ(ibv_poll_cq(end_.cq(), 1, &wc), 1);
  EXPECT_EQ(wc.status, IBV_WC_RNR_RETRY_EXC_ERR);
}

TEST_P(RnrTest, RetriesWithoutEndOutlastAllTimers) {
  start({.rnr_retry_count = 7, .min_rnr_timer = 1});
  ASSERT_EQ(send(1), 0);
  const uint64_t start_ns = now_ns();
  while (now_ns() - start_ns < 20'000'000) ASSERT_TRUE(is_empty(end_.cq()));
  ASSERT_EQ(responder_->post_receive(10, {{0, 0, 64}}), 0);
  EXPECT_EQ(wait_for_one(end_.cq()).status, IBV_WC_SUCCESS);
}

TEST_P(RnrTest, EachSendHasItsOwnRetries) {
  start({.rnr_retry_count = 7, .min_rnr_timer = 1});
  for (uint64_t id = 0; id < 20; ++id) {
    ASSERT_EQ(send(id), 0);
    ASSERT_EQ(responder_->post_receive(id, {{0, 0, 64}}), 0);
    ASSERT_EQ(wait_for_one(end_.cq()).wr_id, id);
    ASSERT_EQ(responder_->wait_for_one().wr_id, id);
  }
}

// ---- the peer itself is not ready, or gone ----

class NotReadyTest : public testing::TestWithParam<Place> {
 protected:
  Node node_;
  Buffer buffer_{node_.domain, 8192};
  End end_{node_};
};

INSTANTIATE_TEST_SUITE_P(Places, NotReadyTest, all_places(), name_by_place);

TEST_P(NotReadyTest, APeerThatConnectsLaterGetsWhatWasSentBefore) {
  Responder responder(GetParam());
  responder.add_buffer(64);
  const Responder::Memory remote = responder.add_buffer(64);
  end_.connect(responder.address(), {.ack_timeout = 0});  // however late it is
  buffer_.at<uint64_t>(0) = 5;
  ASSERT_EQ(post(end_.qp(), {.id = 1,
                             .opcode = IBV_WR_RDMA_WRITE,
                             .sges = {buffer_.sge(0, 8)},
                             .remote_address = remote.address,
                             .rkey = remote.key}),
            0);
  ASSERT_EQ(post(end_.qp(), {.id = 2, .sges = {buffer_.sge(0, 8)}}), 0);
  EXPECT_TRUE(is_empty(end_.cq()));
  EXPECT_EQ(responder.load(1, 0), 0u);
  ASSERT_EQ(responder.post_receive(1, {{0, 0, 64}}), 0);
  responder.connect(end_.address());
  const std::vector<ibv_wc> got = wait_for(end_.cq(), 2);
  ASSERT_EQ(got.size(), 2u);
  EXPECT_EQ(got[0].status, IBV_WC_SUCCESS);
  EXPECT_EQ(got[1].status, IBV_WC_SUCCESS);
  EXPECT_EQ(responder.load(1, 0), 5u);
}

TEST_P(NotReadyTest, APeerThatNeverConnectsIsGivenUp) {
  Responder responder(GetParam());
  end_.connect(responder.address(), kImpatient);
  ASSERT_EQ(post(end_.qp(), {.id = 1, .sges = {buffer_.sge(0, 8)}}), 0);
  ASSERT_EQ(post(end_.qp(), {.id = 2, .sges = {buffer_.sge(0, 8)}}), 0);
  const std::vector<ibv_wc> got = wait_for(end_.cq(), 2);
  ASSERT_EQ(got.size(), 2u);
  EXPECT_EQ(got[0].status, IBV_WC_RETRY_EXC_ERR);
  EXPECT_EQ(got[1].status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(state_of(node_, end_.qp()), IBV_QPS_ERR);
}

TEST_P(NotReadyTest, APeerInTheErrorStateIsGivenUp) {
  Responder responder(GetParam());
  responder.connect(end_, kImpatient);
  responder.to_error();
  ASSERT_EQ(post(end_.qp(), {.id = 1, .sges = {buffer_.sge(0, 8)}}), 0);
  EXPECT_EQ(wait_for_one(end_.cq()).status, IBV_WC_RETRY_EXC_ERR);
}

TEST_P(NotReadyTest, APeerThatPointsElsewhereIsGivenUp) {
  Responder responder(GetParam());
  End other(node_);
  responder.connect(other.address());
  const Responder::Memory remote = responder.add_buffer(64);
  end_.connect(responder.address(), kImpatient);
  ASSERT_EQ(post(end_.qp(), {.opcode = IBV_WR_RDMA_WRITE,
                             .sges = {buffer_.sge(0, 8)},
                             .remote_address = remote.address,
                             .rkey = remote.key}),
            0);
  EXPECT_EQ(wait_for_one(end_.cq()).status, IBV_WC_RETRY_EXC_ERR);
}

TEST_P(NotReadyTest, APeerThatDestroyedItsQueuePairIsGivenUp) {
  Responder responder(GetParam());
  responder.connect(end_, kImpatient);
  const Responder::Memory remote = responder.add_buffer(64);
  responder.destroy_queue_pair();
  ASSERT_EQ(post(end_.qp(), {.opcode = IBV_WR_RDMA_WRITE,
                             .sges = {buffer_.sge(0, 8)},
                             .remote_address = remote.address,
                             .rkey = remote.key}),
            0);
  EXPECT_EQ(wait_for_one(end_.cq()).status, IBV_WC_RETRY_EXC_ERR);
}

TEST_P(NotReadyTest, AWaitingSendIsGivenUpWhenThePeerDestroysItsQueuePair) {
  Responder responder(GetParam());
  responder.connect(end_, {.retry_count = 1, .rnr_retry_count = 7, .ack_timeout = 1});
  ASSERT_EQ(post(end_.qp(), {.id = 1, .sges = {buffer_.sge(0, 8)}}), 0);
  EXPECT_TRUE(is_empty(end_.cq()));
  responder.destroy_queue_pair();
  EXPECT_EQ(wait_for_one(end_.cq()).status, IBV_WC_RETRY_EXC_ERR);
}

TEST(GoneTest, AProcessThatIsNotThereIsGivenUp) {
  Node node;
  Buffer buffer(node.domain, 64);
  End end(node);
  QueuePairAddress address;
  {
    Responder responder(Place::kOtherProcess);
    address = responder.address();
    responder.end(0);
  }
  end.connect(address, kImpatient);
  ASSERT_EQ(post(end.qp(), {.id = 1, .sges = {buffer.sge(0, 8)}}), 0);
  EXPECT_EQ(wait_for_one(end.cq()).status, IBV_WC_RETRY_EXC_ERR);
}

// Even where the retries have no end: a process that has ended never answers.
TEST(GoneTest, AKilledPeerEndsEveryWait) {
  Node node;
  Buffer buffer(node.domain, 64);
  for (const bool with_receive : {false, true}) {
    End end(node);
    Responder responder(Place::kOtherProcess);
    responder.connect(end, {.retry_count = 7, .rnr_retry_count = 7, .ack_timeout = 0});
    if (with_receive) {
      ASSERT_EQ(post_receive(end.qp(), 7, {buffer.sge(0, 64)}), 0);
    }
    ASSERT_EQ(post(end.qp(), {.id = 1, .sges = {buffer.sge(0, 8)}}), 0);
    EXPECT_TRUE(is_empty(end.cq()));
    responder.end(SIGKILL);
    EXPECT_EQ(wait_for_one(end.cq()).status, IBV_WC_RETRY_EXC_ERR);
    if (with_receive) {
      EXPECT_EQ(wait_for_one(end.cq()).status, IBV_WC_WR_FLUSH_ERR);
    }
    EXPECT_EQ(state_of(node, end.qp()), IBV_QPS_ERR);
  }
}

}  // namespace
}  // namespace verbena::soft_test
