// Posting: inline data, signaling, lists of work requests, queue depths, what is refused and when.
#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <vector>

#include "src/device/verbs_control.h"
#include "tests/soft/process.h"
#include "tests/soft/verbs.h"

namespace verbena::soft_test {
namespace {

class PostTest : public testing::Test {
 protected:
  void make(const EndOptions& a = {}, const EndOptions& b = {}) {
    a_.emplace(node_, a);
    b_.emplace(node_, b);
    connect(*a_, *b_);
  }
  SendRequest write(uint64_t id, size_t size_bytes, unsigned flags = IBV_SEND_SIGNALED) {
    return {.id = id,
            .opcode = IBV_WR_RDMA_WRITE,
            .sges = {buffer_.sge(0, size_bytes)},
            .flags = flags,
            .remote_address = buffer_.address(4096),
            .rkey = buffer_.key()};
  }

  Node node_;
  Buffer buffer_{node_.domain, 16384};
  std::optional<End> a_;
  std::optional<End> b_;
};

// ---- inline ----

TEST_F(PostTest, InlineDataMayBeChangedAtOnceAndNeedsNoKey) {
  make({.max_inline_bytes = 256});
  char text[200];
  for (const size_t size : {1, 8, 64, 112, 113, 200}) {
    memset(text, 'a', sizeof(text));
    ASSERT_EQ(post_receive(b_->qp(), 1, {buffer_.sge(0, 4096)}), 0);
    ibv_sge plain{reinterpret_cast<uint64_t>(text), static_cast<uint32_t>(size), 0xdead};
    ASSERT_EQ(post(a_->qp(), {.sges = {plain}, .flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED}), 0);
    memset(text, 'b', sizeof(text));
    ASSERT_EQ(wait_for_one(b_->cq()).byte_len, size);
    ASSERT_EQ(wait_for_one(a_->cq()).status, IBV_WC_SUCCESS);
    for (size_t i = 0; i < size; ++i) ASSERT_EQ(buffer_.at<char>(i), 'a') << i;
  }
}

// The work request cannot be carried out yet, so its data must have been kept.
TEST_F(PostTest, InlineDataMayBeChangedWhileTheSendWaits) {
  make({.max_inline_bytes = 256});
  char text[256];
  for (int i = 0; i < 3; ++i) {
    memset(text, 'a' + i, sizeof(text));
    std::vector<ibv_sge> plain = {{reinterpret_cast<uint64_t>(text), 100, 0},
                                  {reinterpret_cast<uint64_t>(text), 100, 0}};
    ASSERT_EQ(post(a_->qp(), {.sges = plain, .flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED}), 0);
  }
  memset(text, 'z', sizeof(text));
  EXPECT_TRUE(is_empty(a_->cq()));
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(post_receive(b_->qp(), 1, {buffer_.sge(0, 4096)}), 0);
    ASSERT_EQ(wait_for_one(a_->cq()).status, IBV_WC_SUCCESS);
    ASSERT_EQ(wait_for_one(b_->cq()).byte_len, 200u);
    for (size_t at = 0; at < 200; ++at) ASSERT_EQ(buffer_.at<char>(at), 'a' + i);
  }
}

TEST_F(PostTest, InlineWriteNeedsNoKey) {
  make({.max_inline_bytes = 64});
  uint64_t value = 42;
  SendRequest request = write(1, 8, IBV_SEND_INLINE | IBV_SEND_SIGNALED);
  request.sges = {{reinterpret_cast<uint64_t>(&value), 8, 0}};
  ASSERT_EQ(post(a_->qp(), request), 0);
  value = 0;
  ASSERT_EQ(wait_for_one(a_->cq()).status, IBV_WC_SUCCESS);
  EXPECT_EQ(buffer_.at<uint64_t>(4096), 42u);
}

TEST_F(PostTest, InlineTooLargeIsRefused) {
  make({.max_inline_bytes = 64});
  const unsigned flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED;
  EXPECT_EQ(post(a_->qp(), write(1, 64, flags)), 0);
  EXPECT_EQ(post(a_->qp(), write(2, 65, flags)), EINVAL);
  SendRequest split = write(3, 33, flags);
  split.sges.push_back(buffer_.sge(0, 32));
  EXPECT_EQ(post(a_->qp(), split), EINVAL);
  EXPECT_EQ(wait_for_one(a_->cq()).wr_id, 1u);
  EXPECT_TRUE(is_empty(a_->cq()));
}

TEST_F(PostTest, InlineReadsAndAtomicsAreRefused) {
  make();
  SendRequest request = write(1, 8, IBV_SEND_INLINE | IBV_SEND_SIGNALED);
  for (const ibv_wr_opcode opcode :
       {IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD}) {
    request.opcode = opcode;
    EXPECT_EQ(post(a_->qp(), request), EINVAL);
  }
}

// ---- signaling ----

TEST_F(PostTest, UnsignaledWorkCompletesSilently) {
  make();
  for (uint64_t id = 0; id < 10; ++id) ASSERT_EQ(post(a_->qp(), write(id, 8, 0)), 0);
  ASSERT_EQ(post(a_->qp(), write(10, 8)), 0);
  EXPECT_EQ(wait_for_one(a_->cq()).wr_id, 10u);
  EXPECT_TRUE(is_empty(a_->cq()));
}

TEST_F(PostTest, SignalAllSignalsAll) {
  make({.signal_all = true});
  for (uint64_t id = 0; id < 10; ++id) ASSERT_EQ(post(a_->qp(), write(id, 8, 0)), 0);
  const std::vector<ibv_wc> got = wait_for(a_->cq(), 10);
  ASSERT_EQ(got.size(), 10u);
  for (uint64_t id = 0; id < 10; ++id) EXPECT_EQ(got[id].wr_id, id);
}

TEST_F(PostTest, UnsignaledWorkThatFailsIsReported) {
  make();
  SendRequest request = write(5, 8, 0);
  request.rkey ^= 1;
  ASSERT_EQ(post(a_->qp(), request), 0);
  const ibv_wc wc = wait_for_one(a_->cq());
  EXPECT_EQ(wc.wr_id, 5u);
  EXPECT_EQ(wc.status, IBV_WC_REM_ACCESS_ERR);
}

TEST_F(PostTest, AFencedRequestSeesWhatWasReadBefore) {
  make();
  buffer_.at<uint64_t>(4096) = 77;
  ibv_sge result = buffer_.sge(0, 8);
  SendRequest read{.id = 1,
                   .opcode = IBV_WR_RDMA_READ,
                   .sges = {result},
                   .flags = 0,
                   .remote_address = buffer_.address(4096),
                   .rkey = buffer_.key()};
  SendRequest forward{.id = 2,
                      .opcode = IBV_WR_RDMA_WRITE,
                      .sges = {result},
                      .flags = IBV_SEND_FENCE | IBV_SEND_SIGNALED,
                      .remote_address = buffer_.address(8192),
                      .rkey = buffer_.key()};
  ibv_send_wr second = to_wr(forward);
  ibv_send_wr first = to_wr(read);
  first.next = &second;
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(a_->qp(), &first, &bad), 0);
  ASSERT_EQ(wait_for_one(a_->cq()).wr_id, 2u);
  EXPECT_EQ(buffer_.at<uint64_t>(8192), 77u);
}

// ---- lists ----

struct SendList {
  std::vector<SendRequest> requests;
  std::vector<ibv_send_wr> wrs;
  explicit SendList(std::vector<SendRequest> all) : requests(std::move(all)) {
    for (SendRequest& request : requests) wrs.push_back(to_wr(request));
    for (size_t i = 0; i + 1 < wrs.size(); ++i) wrs[i].next = &wrs[i + 1];
  }
};

TEST_F(PostTest, AListStopsAtTheBadOneAndDoesThoseBefore) {
  make();
  buffer_.at<uint64_t>(0) = 1;
  SendList list({write(1, 8), write(2, 8), write(3, 8), write(4, 8)});
  list.wrs[0].wr.rdma.remote_addr = buffer_.address(4096);
  list.wrs[1].wr.rdma.remote_addr = buffer_.address(4104);
  list.wrs[2].num_sge = 5;  // more than the queue pair has
  list.wrs[3].wr.rdma.remote_addr = buffer_.address(4120);
  ibv_send_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_send(a_->qp(), list.wrs.data(), &bad), EINVAL);
  EXPECT_EQ(bad, &list.wrs[2]);
  const std::vector<ibv_wc> got = wait_for(a_->cq(), 2);
  ASSERT_EQ(got.size(), 2u);
  EXPECT_EQ(got[0].wr_id, 1u);
  EXPECT_EQ(got[1].wr_id, 2u);
  EXPECT_TRUE(is_empty(a_->cq()));
  EXPECT_EQ(buffer_.at<uint64_t>(4096), 1u);
  EXPECT_EQ(buffer_.at<uint64_t>(4104), 1u);
  EXPECT_EQ(buffer_.at<uint64_t>(4120), 0u);
  EXPECT_EQ(state_of(node_, a_->qp()), IBV_QPS_RTS);
}

// Not an error of posting: the rest is flushed.
TEST_F(PostTest, AListIsFlushedBehindOneThatFailsAtThePeer) {
  make();
  SendList list({write(1, 8), write(2, 8), write(3, 8)});
  list.wrs[1].wr.rdma.rkey ^= 1;
  ibv_send_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_send(a_->qp(), list.wrs.data(), &bad), 0);
  const std::vector<ibv_wc> got = wait_for(a_->cq(), 3);
  ASSERT_EQ(got.size(), 3u);
  EXPECT_EQ(got[0].status, IBV_WC_SUCCESS);
  EXPECT_EQ(got[1].status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(got[2].status, IBV_WC_WR_FLUSH_ERR);
  for (uint64_t id = 1; id <= 3; ++id) EXPECT_EQ(got[id - 1].wr_id, id);
}

TEST_F(PostTest, AListOfReceivesStopsAtTheBadOne) {
  make({}, {.recv_depth = 8});
  ibv_sge sge = buffer_.sge(0, 64);
  ibv_recv_wr wrs[3];
  for (uint64_t i = 0; i < 3; ++i) {
    wrs[i] = {.wr_id = i, .next = i < 2 ? &wrs[i + 1] : nullptr, .sg_list = &sge, .num_sge = 1};
  }
  wrs[1].num_sge = 5;
  ibv_recv_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_recv(b_->qp(), wrs, &bad), EINVAL);
  EXPECT_EQ(bad, &wrs[1]);
  // The first one is there, and no more.
  ASSERT_EQ(post(a_->qp(), {.id = 10, .sges = {buffer_.sge(0, 8)}}), 0);
  ASSERT_EQ(post(a_->qp(), {.id = 11, .sges = {buffer_.sge(0, 8)}}), 0);
  EXPECT_EQ(wait_for_one(b_->cq()).wr_id, 0u);
  EXPECT_EQ(wait_for_one(a_->cq()).wr_id, 10u);
  EXPECT_TRUE(is_empty(a_->cq()));
  EXPECT_TRUE(is_empty(b_->cq()));
}

// ---- depths ----

TEST_F(PostTest, AFullSendQueueRefusesUntilCompletionsArePolled) {
  make({.send_depth = 4});
  for (uint64_t id = 0; id < 4; ++id) ASSERT_EQ(post(a_->qp(), write(id, 8)), 0);
  EXPECT_EQ(post(a_->qp(), write(4, 8)), ENOMEM);
  EXPECT_EQ(wait_for_one(a_->cq()).wr_id, 0u);
  EXPECT_EQ(post(a_->qp(), write(5, 8)), 0);
  EXPECT_EQ(post(a_->qp(), write(6, 8)), ENOMEM);
  EXPECT_EQ(wait_for(a_->cq(), 4).size(), 4u);
  for (uint64_t id = 0; id < 4; ++id) ASSERT_EQ(post(a_->qp(), write(id, 8)), 0);
}

TEST_F(PostTest, ASignaledCompletionFreesTheUnsignaledOnesBeforeIt) {
  make({.send_depth = 4});
  for (int lap = 0; lap < 10; ++lap) {
    for (uint64_t id = 0; id < 3; ++id) ASSERT_EQ(post(a_->qp(), write(id, 8, 0)), 0);
    ASSERT_EQ(post(a_->qp(), write(3, 8)), 0);
    ASSERT_EQ(post(a_->qp(), write(4, 8)), ENOMEM);
    ASSERT_EQ(wait_for_one(a_->cq()).wr_id, 3u);
  }
  // Without a signaled one nothing is ever freed, as on hardware.
  for (uint64_t id = 0; id < 4; ++id) ASSERT_EQ(post(a_->qp(), write(id, 8, 0)), 0);
  EXPECT_TRUE(is_empty(a_->cq()));
  EXPECT_EQ(post(a_->qp(), write(5, 8, 0)), ENOMEM);
}

TEST_F(PostTest, AFullSendQueueOfWaitingSendsRefusesToo) {
  make({.send_depth = 4});
  const SendRequest request{.sges = {buffer_.sge(0, 8)}};
  for (int i = 0; i < 4; ++i) ASSERT_EQ(post(a_->qp(), request), 0);
  EXPECT_EQ(post(a_->qp(), request), ENOMEM);
  for (int i = 0; i < 4; ++i) ASSERT_EQ(post_receive(b_->qp(), 0, {buffer_.sge(64, 64)}), 0);
  EXPECT_EQ(wait_for(a_->cq(), 4).size(), 4u);
  EXPECT_EQ(post(a_->qp(), request), 0);
}

TEST_F(PostTest, AFullReceiveQueueRefusesUntilOneIsConsumed) {
  make({}, {.recv_depth = 4});
  for (uint64_t id = 0; id < 4; ++id) {
    ASSERT_EQ(post_receive(b_->qp(), id, {buffer_.sge(0, 64)}), 0);
  }
  EXPECT_EQ(post_receive(b_->qp(), 4, {buffer_.sge(0, 64)}), ENOMEM);
  ASSERT_EQ(post(a_->qp(), {.sges = {buffer_.sge(0, 8)}}), 0);
  EXPECT_EQ(wait_for_one(b_->cq()).wr_id, 0u);
  EXPECT_EQ(post_receive(b_->qp(), 5, {buffer_.sge(0, 64)}), 0);
  EXPECT_EQ(post_receive(b_->qp(), 6, {buffer_.sge(0, 64)}), ENOMEM);
}

TEST_F(PostTest, AFullSharedReceiveQueueRefusesUntilOneIsConsumed) {
  SharedReceiveQueue srq = must(SharedReceiveQueue::create(node_.domain, {.depth_wrs = 4}));
  make({}, {.shared_receive_queue = &srq});
  for (uint64_t id = 0; id < 4; ++id) {
    ASSERT_EQ(post_receive(srq.get(), id, {buffer_.sge(0, 64)}), 0);
  }
  EXPECT_EQ(post_receive(srq.get(), 4, {buffer_.sge(0, 64)}), ENOMEM);
  EXPECT_EQ(post_receive(srq.get(), 4, {buffer_.sge(0, 64), buffer_.sge(64, 64)}), EINVAL);
  ASSERT_EQ(post(a_->qp(), {.sges = {buffer_.sge(0, 8)}}), 0);
  EXPECT_EQ(wait_for_one(b_->cq()).wr_id, 0u);
  EXPECT_EQ(post_receive(srq.get(), 5, {buffer_.sge(0, 64)}), 0);
  EXPECT_EQ(post_receive(srq.get(), 6, {buffer_.sge(0, 64)}), ENOMEM);
  // A queue pair with a shared receive queue has no receives of its own.
  EXPECT_EQ(post_receive(b_->qp(), 7, {buffer_.sge(0, 64)}), EINVAL);
  b_.reset();
}

// ---- what is refused ----

TEST_F(PostTest, TooManyEntriesAreRefused) {
  make({.max_sges = 2}, {.max_sges = 2});
  const ibv_sge sge = buffer_.sge(0, 8);
  EXPECT_EQ(post(a_->qp(), {.sges = {sge, sge, sge}}), EINVAL);
  EXPECT_EQ(post_receive(b_->qp(), 0, {sge, sge, sge}), EINVAL);
  EXPECT_EQ(post_receive(b_->qp(), 0, {sge, sge}), 0);
  EXPECT_EQ(post(a_->qp(), {.sges = {sge, sge}}), 0);
  EXPECT_EQ(wait_for_one(b_->cq()).byte_len, 16u);
}

TEST_F(PostTest, UnknownOperationsAreRefused) {
  make();
  SendRequest request = write(1, 8);
  // The library knows these; the device has no segmentation. Here no window is named to be bound.
  for (const ibv_wr_opcode opcode : {IBV_WR_BIND_MW, IBV_WR_TSO, IBV_WR_DRIVER1}) {
    request.opcode = opcode;
    EXPECT_EQ(post(a_->qp(), request), EINVAL) << opcode;
  }
}

TEST_F(PostTest, AMessageLargerThanThePortsLimitIsRefused) {
  make();
  SendRequest request = write(1, 8);
  request.sges = {{buffer_.address(), 1u << 30, buffer_.key()},
                  {buffer_.address(), 1, buffer_.key()}};
  EXPECT_EQ(post(a_->qp(), request), EINVAL);
  EXPECT_EQ(state_of(node_, a_->qp()), IBV_QPS_RTS);
}

TEST_F(PostTest, ReadsNeedAnOutstandingReadAllowed) {
  a_.emplace(node_);
  b_.emplace(node_);
  ibv_qp_attr attributes{};
  const VerbsControl& control = node_.control();
  // By hand, since the class does not connect with 0.
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = IBV_MTU_1024;
  attributes.dest_qp_num = b_->qp()->qp_num;
  attributes.ah_attr.port_num = 1;
  attributes.ah_attr.dlid = 1;
  ASSERT_EQ(control.modify_qp(a_->qp(), &attributes,
                              IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                  IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
            0);
  attributes.qp_state = IBV_QPS_RTS;
  attributes.max_rd_atomic = 0;
  ASSERT_EQ(control.modify_qp(a_->qp(), &attributes,
                              IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                  IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC),
            0);
  b_->connect(a_->address());
  SendRequest request = write(1, 8);
  EXPECT_EQ(post(a_->qp(), request), 0);
  request.opcode = IBV_WR_RDMA_READ;
  EXPECT_EQ(post(a_->qp(), request), EINVAL);
}

TEST_F(PostTest, PostingInEachState) {
  a_.emplace(node_);
  b_.emplace(node_);
  const VerbsControl& control = node_.control();
  const SendRequest send{.sges = {buffer_.sge(0, 8)}};
  const std::vector<ibv_sge> in = {buffer_.sge(64, 64)};
  ibv_qp_attr attributes{};

  attributes.qp_state = IBV_QPS_RESET;
  ASSERT_EQ(control.modify_qp(a_->qp(), &attributes, IBV_QP_STATE), 0);
  EXPECT_EQ(post(a_->qp(), send), EINVAL);
  EXPECT_EQ(post_receive(a_->qp(), 0, in), EINVAL);

  must(a_->queue_pair().init(kAllAccess));
  EXPECT_EQ(post(a_->qp(), send), EINVAL);
  EXPECT_EQ(post_receive(a_->qp(), 0, in), 0);

  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = IBV_MTU_1024;
  attributes.dest_qp_num = b_->qp()->qp_num;
  attributes.min_rnr_timer = 12;
  attributes.ah_attr.port_num = 1;
  attributes.ah_attr.dlid = 1;
  ASSERT_EQ(control.modify_qp(a_->qp(), &attributes,
                              IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                  IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
            0);
  EXPECT_EQ(post(a_->qp(), send), EINVAL);
  EXPECT_EQ(post_receive(a_->qp(), 0, in), 0);

  attributes.qp_state = IBV_QPS_RTS;
  attributes.rnr_retry = 7;  // the send below waits for a receive until it is flushed
  ASSERT_EQ(control.modify_qp(a_->qp(), &attributes,
                              IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                  IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC),
            0);
  b_->connect(a_->address());
  EXPECT_EQ(post(a_->qp(), send), 0);
  EXPECT_EQ(post_receive(a_->qp(), 0, in), 0);

  // In the error state both are accepted and flushed.
  must(a_->queue_pair().to_error());
  EXPECT_EQ(post(a_->qp(), send), 0);
  EXPECT_EQ(post_receive(a_->qp(), 0, in), 0);
  const std::vector<ibv_wc> got = wait_for(a_->cq(), 6);
  ASSERT_EQ(got.size(), 6u);
  for (const ibv_wc& wc : got) EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
}

// ---- completion queue overrun ----

TEST_F(PostTest, AnOverrunCompletionQueueRaisesOneEventAndFails) {
  CompletionQueue small = must(CompletionQueue::create(node_.device, {.depth_cqes = 4}));
  make({.send_cq = &small, .recv_cq = &small});
  for (uint64_t id = 0; id < 4; ++id) ASSERT_EQ(post(a_->qp(), write(id, 8)), 0);
  EXPECT_FALSE(has_event(node_));
  // The fifth has no room.
  EXPECT_EQ(post(a_->qp(), write(4, 8)), 0);
  EXPECT_EQ(wait_for_event(node_), IBV_EVENT_CQ_ERR);
  EXPECT_EQ(wait_for_event(node_), IBV_EVENT_QP_FATAL);
  EXPECT_EQ(state_of(node_, a_->qp()), IBV_QPS_ERR);
  ibv_wc wc[8];
  // What was there can still be read; after that the queue only fails, and stays so.
  EXPECT_EQ(ibv_poll_cq(small.get(), 8, wc), 4);
  EXPECT_LT(ibv_poll_cq(small.get(), 8, wc), 0);
  EXPECT_EQ(post(a_->qp(), write(5, 8)), 0);
  EXPECT_LT(ibv_poll_cq(small.get(), 8, wc), 0);
  EXPECT_FALSE(has_event(node_));
  a_.reset();
}

}  // namespace
}  // namespace verbena::soft_test
