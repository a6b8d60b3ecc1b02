// The queue pair's state machine, the limits at creation, and what may not be destroyed yet.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "src/device/verbs_control.h"
#include "tests/soft/process.h"
#include "tests/soft/verbs.h"

namespace verbena::soft_test {
namespace {

constexpr int kInitMask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
constexpr int kRtrMask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                         IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
constexpr int kRtsMask = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                         IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;

class StateTest : public testing::Test {
 protected:
  ibv_qp_init_attr init_attributes() {
    ibv_qp_init_attr init{};
    init.send_cq = cq_.get();
    init.recv_cq = cq_.get();
    init.qp_type = IBV_QPT_RC;
    init.cap = {.max_send_wr = 4,
                .max_recv_wr = 4,
                .max_send_sge = 1,
                .max_recv_sge = 1,
                .max_inline_data = 16};
    return init;
  }
  void SetUp() override {
    ibv_qp_init_attr init = init_attributes();
    qp_ = control_.create_qp(node_.domain.get(), &init);
    ASSERT_NE(qp_, nullptr);
  }
  void TearDown() override { EXPECT_EQ(control_.destroy_qp(qp_), 0); }

  // Attributes that are right for every step; the queue pair is its own peer.
  ibv_qp_attr attributes(ibv_qp_state state) const {
    ibv_qp_attr all{};
    all.qp_state = state;
    all.port_num = 1;
    all.qp_access_flags = kAllAccess;
    all.path_mtu = IBV_MTU_1024;
    all.dest_qp_num = qp_->qp_num;
    all.max_dest_rd_atomic = 1;
    all.min_rnr_timer = 12;
    all.ah_attr.port_num = 1;
    all.ah_attr.dlid = 1;
    all.timeout = 14;
    all.retry_cnt = 7;
    all.rnr_retry = 7;
    all.max_rd_atomic = 1;
    return all;
  }
  static int mask_of(ibv_qp_state state) {
    switch (state) {
      case IBV_QPS_INIT:
        return kInitMask;
      case IBV_QPS_RTR:
        return kRtrMask;
      case IBV_QPS_RTS:
        return kRtsMask;
      default:
        return IBV_QP_STATE;
    }
  }
  int step(ibv_qp_state to) {
    ibv_qp_attr all = attributes(to);
    return control_.modify_qp(qp_, &all, mask_of(to));
  }
  int modify(ibv_qp_attr all, int mask) { return control_.modify_qp(qp_, &all, mask); }
  void go_to(ibv_qp_state state) {
    ASSERT_EQ(step(IBV_QPS_RESET), 0);
    for (const ibv_qp_state next : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}) {
      if (state == IBV_QPS_RESET) return;
      ASSERT_EQ(step(next), 0) << control_.last_error();
      if (next == state) return;
    }
    ASSERT_EQ(step(state), 0);
  }
  ibv_qp_state state() const { return state_of(node_, qp_); }

  Node node_;
  const VerbsControl& control_ = node_.control();
  CompletionQueue cq_ = must(CompletionQueue::create(node_.device, {.depth_cqes = 64}));
  ibv_qp* qp_ = nullptr;
};

constexpr ibv_qp_state kStates[] = {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS,
                                    IBV_QPS_SQD,   IBV_QPS_SQE,  IBV_QPS_ERR};

TEST_F(StateTest, EveryStepIsAllowedOrRefusedAsTheSpecificationSays) {
  const auto allowed = [](ibv_qp_state from, ibv_qp_state to) {
    if (to == IBV_QPS_RESET) return true;
    if (to == IBV_QPS_ERR) return from != IBV_QPS_RESET;
    switch (from) {
      case IBV_QPS_RESET:
        return to == IBV_QPS_INIT;
      case IBV_QPS_INIT:
        return to == IBV_QPS_INIT || to == IBV_QPS_RTR;
      case IBV_QPS_RTR:
        return to == IBV_QPS_RTS;
      default:
        return false;
    }
  };
  for (const ibv_qp_state from :
       {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_ERR}) {
    for (const ibv_qp_state to : kStates) {
      go_to(from);
      SCOPED_TRACE(testing::Message() << "from " << from << " to " << to);
      ASSERT_EQ(state(), from);
      if (allowed(from, to)) {
        EXPECT_EQ(step(to), 0) << control_.last_error();
        EXPECT_EQ(state(), to);
        EXPECT_EQ(qp_->state, to);
      } else {
        EXPECT_EQ(step(to), EINVAL);
        const std::string reason = control_.last_error();
        EXPECT_EQ(state(), from);
        EXPECT_NE(reason, "");
        EXPECT_EQ(reason.find('\n'), std::string::npos);
      }
    }
  }
  // RTS -> RTS needs a mask that says so.
  go_to(IBV_QPS_RTS);
  EXPECT_EQ(modify(attributes(IBV_QPS_RTS), IBV_QP_STATE), 0);
}

TEST_F(StateTest, EachRequiredAttributeIsRequired) {
  for (const ibv_qp_state to : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}) {
    for (int bit = 1; bit < 1 << 21; bit <<= 1) {
      if (bit == IBV_QP_STATE || (mask_of(to) & bit) == 0) continue;
      go_to(to == IBV_QPS_INIT ? IBV_QPS_RESET : to == IBV_QPS_RTR ? IBV_QPS_INIT : IBV_QPS_RTR);
      const ibv_qp_state before = state();
      EXPECT_EQ(modify(attributes(to), mask_of(to) & ~bit), EINVAL) << to << " without " << bit;
      EXPECT_EQ(state(), before);
    }
  }
}

TEST_F(StateTest, AttributesThatDoNotBelongToAStepAreRefused) {
  go_to(IBV_QPS_RESET);
  EXPECT_EQ(modify(attributes(IBV_QPS_INIT), kInitMask | IBV_QP_TIMEOUT), EINVAL);
  go_to(IBV_QPS_INIT);
  EXPECT_EQ(modify(attributes(IBV_QPS_RTR), kRtrMask | IBV_QP_RETRY_CNT), EINVAL);
  EXPECT_EQ(modify(attributes(IBV_QPS_RTR), kRtrMask | IBV_QP_ACCESS_FLAGS), 0);
  EXPECT_EQ(modify(attributes(IBV_QPS_RTS), kRtsMask | IBV_QP_DEST_QPN), EINVAL);
  EXPECT_EQ(modify(attributes(IBV_QPS_RTS), kRtsMask | IBV_QP_ACCESS_FLAGS), 0);
  EXPECT_EQ(modify(attributes(IBV_QPS_RTS), IBV_QP_TIMEOUT), EINVAL);
  EXPECT_EQ(modify(attributes(IBV_QPS_ERR), IBV_QP_STATE | IBV_QP_TIMEOUT), EINVAL);
  EXPECT_EQ(modify(attributes(IBV_QPS_RESET), IBV_QP_STATE | IBV_QP_PORT), EINVAL);
}

TEST_F(StateTest, ValuesOutOfRangeAreRefused) {
  go_to(IBV_QPS_RESET);
  ibv_qp_attr wrong = attributes(IBV_QPS_INIT);
  wrong.port_num = 2;
  EXPECT_EQ(modify(wrong, kInitMask), EINVAL);
  wrong.port_num = 0;
  EXPECT_EQ(modify(wrong, kInitMask), EINVAL);
  wrong = attributes(IBV_QPS_INIT);
  wrong.pkey_index = 1;
  EXPECT_EQ(modify(wrong, kInitMask), EINVAL);

  go_to(IBV_QPS_INIT);
  wrong = attributes(IBV_QPS_RTR);
  wrong.path_mtu = static_cast<ibv_mtu>(6);
  EXPECT_EQ(modify(wrong, kRtrMask), EINVAL);
  wrong = attributes(IBV_QPS_RTR);
  wrong.min_rnr_timer = 32;
  EXPECT_EQ(modify(wrong, kRtrMask), EINVAL);
  wrong = attributes(IBV_QPS_RTR);
  wrong.dest_qp_num = qp_->qp_num | 1u << 24;  // 24 bits there are
  EXPECT_EQ(modify(wrong, kRtrMask), EINVAL);

  go_to(IBV_QPS_RTR);
  wrong = attributes(IBV_QPS_RTS);
  wrong.timeout = 32;
  EXPECT_EQ(modify(wrong, kRtsMask), EINVAL);
  wrong = attributes(IBV_QPS_RTS);
  wrong.retry_cnt = 8;
  EXPECT_EQ(modify(wrong, kRtsMask), EINVAL);
  wrong = attributes(IBV_QPS_RTS);
  wrong.rnr_retry = 8;
  EXPECT_EQ(modify(wrong, kRtsMask), EINVAL);
  EXPECT_EQ(state(), IBV_QPS_RTR);
  EXPECT_EQ(step(IBV_QPS_RTS), 0);
}

TEST_F(StateTest, TheCurrentStateMustBeTheGivenOne) {
  go_to(IBV_QPS_RTS);
  ibv_qp_attr all = attributes(IBV_QPS_RTS);
  all.cur_qp_state = IBV_QPS_SQD;
  EXPECT_EQ(modify(all, IBV_QP_STATE | IBV_QP_CUR_STATE), EINVAL);
  all.cur_qp_state = IBV_QPS_RTS;
  EXPECT_EQ(modify(all, IBV_QP_STATE | IBV_QP_CUR_STATE), 0);
}

TEST_F(StateTest, QueryTellsWhatWasSet) {
  go_to(IBV_QPS_RTS);
  ibv_qp_attr all{};
  ibv_qp_init_attr init{};
  ASSERT_EQ(control_.query_qp(qp_, &all, IBV_QP_STATE, &init), 0);
  EXPECT_EQ(all.qp_state, IBV_QPS_RTS);
  EXPECT_EQ(all.cur_qp_state, IBV_QPS_RTS);
  EXPECT_EQ(all.dest_qp_num, qp_->qp_num);
  EXPECT_EQ(all.path_mtu, IBV_MTU_1024);
  EXPECT_EQ(all.qp_access_flags, kAllAccess);
  EXPECT_EQ(all.timeout, 14);
  EXPECT_EQ(all.retry_cnt, 7);
  EXPECT_EQ(all.rnr_retry, 7);
  EXPECT_EQ(all.min_rnr_timer, 12);
  EXPECT_EQ(all.port_num, 1);
  EXPECT_EQ(init.cap.max_send_wr, 4u);
  EXPECT_EQ(init.send_cq, cq_.get());
  EXPECT_EQ(init.qp_type, IBV_QPT_RC);
}

// A queue pair that is its own peer.
TEST_F(StateTest, AQueuePairMayBeConnectedToItself) {
  Buffer buffer(node_.domain, 4096);
  go_to(IBV_QPS_RTS);
  fill_pattern(buffer.data(), 1024, 1);
  for (const size_t size : {8, 1024}) {
    ASSERT_EQ(post_receive(qp_, 5, {buffer.sge(2048, 1024)}), 0);
    ASSERT_EQ(post(qp_, {.id = 6, .sges = {buffer.sge(0, size)}}), 0);
    const std::vector<ibv_wc> got = wait_for(cq_.get(), 2);
    ASSERT_EQ(got.size(), 2u);
    EXPECT_EQ(got[0].status, IBV_WC_SUCCESS);
    EXPECT_EQ(got[1].status, IBV_WC_SUCCESS);
    EXPECT_TRUE(has_pattern(buffer.data() + 2048, size, 1));
  }
}

TEST_F(StateTest, AccessMayBeTakenAwayFromAConnectedPeer) {
  Buffer buffer(node_.domain, 4096);
  go_to(IBV_QPS_RTS);
  const SendRequest write{.opcode = IBV_WR_RDMA_WRITE,
                          .sges = {buffer.sge(0, 8)},
                          .remote_address = buffer.address(64),
                          .rkey = buffer.key()};
  ASSERT_EQ(post(qp_, write), 0);
  EXPECT_EQ(wait_for_one(cq_.get()).status, IBV_WC_SUCCESS);
  ibv_qp_attr all = attributes(IBV_QPS_RTS);
  all.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
  ASSERT_EQ(modify(all, IBV_QP_ACCESS_FLAGS), 0);
  ASSERT_EQ(post(qp_, write), 0);
  EXPECT_EQ(wait_for_one(cq_.get()).status, IBV_WC_REM_ACCESS_ERR);
}

// ---- limits at creation ----

struct CreationTest : StateTest {
  void expect_refused(const ibv_qp_init_attr& asked, int error = EINVAL) {
    ibv_qp_init_attr init = asked;
    errno = 0;
    EXPECT_EQ(control_.create_qp(node_.domain.get(), &init), nullptr);
    EXPECT_EQ(errno, error);
    EXPECT_NE(std::string(control_.last_error()), "");
  }
};

TEST_F(CreationTest, QueuePairsBeyondTheDevicesLimitsAreRefused) {
  ibv_device_attr limits{};
  ASSERT_EQ(control_.query_device(node_.device.get(), &limits), 0);
  ibv_qp_init_attr init = init_attributes();
  init.cap.max_send_wr = static_cast<uint32_t>(limits.max_qp_wr) + 1;
  expect_refused(init);
  init = init_attributes();
  init.cap.max_recv_wr = static_cast<uint32_t>(limits.max_qp_wr) + 1;
  expect_refused(init);
  init = init_attributes();
  init.cap.max_send_sge = static_cast<uint32_t>(limits.max_sge) + 1;
  expect_refused(init);
  init = init_attributes();
  init.cap.max_recv_sge = static_cast<uint32_t>(limits.max_sge) + 1;
  expect_refused(init);
  init = init_attributes();
  init.cap.max_inline_data = 1 << 20;
  expect_refused(init);
  init = init_attributes();
  init.qp_type = IBV_QPT_DRIVER;
  expect_refused(init, EOPNOTSUPP);
  init = init_attributes();
  init.recv_cq = nullptr;
  expect_refused(init);

  init = init_attributes();
  init.cap = {.max_send_wr = static_cast<uint32_t>(limits.max_qp_wr),
              .max_recv_wr = static_cast<uint32_t>(limits.max_qp_wr),
              .max_send_sge = static_cast<uint32_t>(limits.max_sge),
              .max_recv_sge = static_cast<uint32_t>(limits.max_sge),
              .max_inline_data = node_.device.info().max_inline_bytes};
  ibv_qp* largest = control_.create_qp(node_.domain.get(), &init);
  ASSERT_NE(largest, nullptr) << control_.last_error();
  EXPECT_EQ(control_.destroy_qp(largest), 0);
}

TEST_F(CreationTest, CompletionQueuesBeyondTheDevicesLimitsAreRefused) {
  ibv_device_attr limits{};
  ASSERT_EQ(control_.query_device(node_.device.get(), &limits), 0);
  ibv_context* context = node_.device.get();
  EXPECT_EQ(control_.create_cq(context, 0, nullptr, nullptr, 0), nullptr);
  EXPECT_EQ(control_.create_cq(context, -1, nullptr, nullptr, 0), nullptr);
  EXPECT_EQ(control_.create_cq(context, limits.max_cqe + 1, nullptr, nullptr, 0), nullptr);
  EXPECT_EQ(control_.create_cq(context, 1, nullptr, nullptr, context->num_comp_vectors), nullptr);
  ibv_cq* largest = control_.create_cq(context, limits.max_cqe, nullptr, nullptr, 0);
  ASSERT_NE(largest, nullptr);
  EXPECT_GE(largest->cqe, limits.max_cqe);
  EXPECT_EQ(control_.destroy_cq(largest), 0);
}

TEST_F(CreationTest, SharedReceiveQueuesBeyondTheDevicesLimitsAreRefused) {
  ibv_device_attr limits{};
  ASSERT_EQ(control_.query_device(node_.device.get(), &limits), 0);
  const auto create = [&](uint32_t depth, uint32_t sges) {
    ibv_srq_init_attr init{};
    init.attr = {.max_wr = depth, .max_sge = sges, .srq_limit = 0};
    return control_.create_srq(node_.domain.get(), &init);
  };
  const auto max_depth = static_cast<uint32_t>(limits.max_srq_wr);
  const auto max_sges = static_cast<uint32_t>(limits.max_srq_sge);
  EXPECT_EQ(create(0, 1), nullptr);
  EXPECT_EQ(create(max_depth + 1, 1), nullptr);
  EXPECT_EQ(create(1, max_sges + 1), nullptr);
  ibv_srq* largest = create(max_depth, max_sges);
  ASSERT_NE(largest, nullptr);
  EXPECT_EQ(control_.destroy_srq(largest), 0);
}

TEST_F(CreationTest, RegionsThatCannotBeAreRefused) {
  std::vector<std::byte> memory(4096);
  ibv_pd* domain = node_.domain.get();
  const auto address = reinterpret_cast<uint64_t>(memory.data());
  const auto refused = [&](void* at, size_t size, unsigned access) {
    errno = 0;
    EXPECT_EQ(control_.reg_mr(domain, at, size, address, access), nullptr);
    EXPECT_NE(errno, 0);
    EXPECT_NE(std::string(control_.last_error()), "");
  };
  refused(memory.data(), ~size_t{0}, kAllAccess);
  refused(nullptr, 4096, kAllAccess);
  refused(memory.data(), 4096, IBV_ACCESS_REMOTE_WRITE);  // remote without local write
  refused(memory.data(), 4096, IBV_ACCESS_REMOTE_ATOMIC);
}

// ---- what last_error() tells ----

TEST_F(StateTest, TheLastErrorIsThatOfTheLatestCall) {
  CompletionChannel channel = must(CompletionChannel::create(node_.device));
  fcntl(channel.get()->fd, F_SETFL, O_NONBLOCK);
  const auto refuse_something = [&] {
    ibv_qp_init_attr init = init_attributes();
    init.qp_type = IBV_QPT_DRIVER;
    ASSERT_EQ(control_.create_qp(node_.domain.get(), &init), nullptr);
    ASSERT_NE(std::string(control_.last_error()), "");
  };
  refuse_something();
  go_to(IBV_QPS_RTS);
  EXPECT_STREQ(control_.last_error(), "");
  // A failure of which errno says it all.
  refuse_something();
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  ASSERT_EQ(control_.get_cq_event(channel.get(), &cq, &context), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_STREQ(control_.last_error(), "");
}

// ---- destruction ----

TEST_F(StateTest, WhatIsInUseIsNotDestroyed) {
  SharedReceiveQueue srq = must(SharedReceiveQueue::create(node_.domain, {.depth_wrs = 4}));
  ibv_qp_init_attr init = init_attributes();
  init.srq = srq.get();
  ibv_qp* with_srq = control_.create_qp(node_.domain.get(), &init);
  ASSERT_NE(with_srq, nullptr);
  EXPECT_EQ(control_.destroy_cq(cq_.get()), EBUSY);
  EXPECT_EQ(control_.destroy_srq(srq.get()), EBUSY);
  EXPECT_EQ(control_.dealloc_pd(node_.domain.get()), EBUSY);
  EXPECT_NE(std::string(control_.last_error()), "");
  EXPECT_EQ(control_.destroy_qp(with_srq), 0);
  // All still work.
  go_to(IBV_QPS_RTS);
}

// ---- resetting ----

TEST_F(StateTest, AResetForgetsAllWorkAndItsCompletions) {
  Buffer buffer(node_.domain, 4096);
  for (int round = 0; round < 100; ++round) {
    go_to(IBV_QPS_RTS);
    for (uint64_t id = 0; id < 2; ++id) {
      ASSERT_EQ(post_receive(qp_, id, {buffer.sge(0, 64)}), 0);
      ASSERT_EQ(post(qp_, {.id = id, .sges = {buffer.sge(64, 8)}}), 0);
    }
    ASSERT_EQ(post(qp_, {.id = 2, .sges = {buffer.sge(64, 8)}}), 0);  // waits
    ASSERT_EQ(step(IBV_QPS_RESET), 0);
    EXPECT_TRUE(is_empty(cq_.get()));
  }
  // All of both queues is free again.
  go_to(IBV_QPS_RTS);
  for (uint64_t id = 0; id < 4; ++id) {
    ASSERT_EQ(post_receive(qp_, id, {buffer.sge(0, 64)}), 0);
    ASSERT_EQ(post(qp_, {.id = id, .sges = {buffer.sge(64, 8)}}), 0);
  }
  EXPECT_EQ(wait_for(cq_.get(), 8).size(), 8u);
}

TEST_F(StateTest, AResetForgetsFlushesToo) {
  Buffer buffer(node_.domain, 4096);
  go_to(IBV_QPS_RTS);
  for (uint64_t id = 0; id < 4; ++id) ASSERT_EQ(post_receive(qp_, id, {buffer.sge(0, 64)}), 0);
  ASSERT_EQ(step(IBV_QPS_ERR), 0);
  ASSERT_EQ(post(qp_, {.sges = {buffer.sge(0, 8)}}), 0);
  EXPECT_EQ(wait_for(cq_.get(), 2).size(), 2u);
  ASSERT_EQ(step(IBV_QPS_RESET), 0);
  EXPECT_TRUE(is_empty(cq_.get()));
}

}  // namespace
}  // namespace verbena::soft_test
