// The extended verbs within a process: posting by ibv_wr_start(), polling by ibv_start_poll(), and
// the objects that only these contexts have.
#include "src/device/soft/extended.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "src/base/runtime.h"
#include "src/device/soft/atomic_write.h"
#include "src/device/soft/control.h"
#include "src/device/soft/objects.h"
#include "src/device/soft/soft.h"
#include "src/device/verbs_for_test.h"

namespace verbena::soft {
namespace {

using test::Buffer;
using test::Node;

constexpr uint64_t kAllOperations =
    IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |
    IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
    IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW |
    IBV_QP_EX_WITH_SEND_WITH_INV | kAtomicWriteOperation;
constexpr uint32_t kDepth = 8;
constexpr uint32_t kInlineBytes = 64;

// Two connected queue pairs with extended queues.
class ExtendedTest : public testing::Test {
 protected:
  void SetUp() override {
    context_ = node_.device.get();
    ibv_cq_init_attr_ex cq{};
    cq.cqe = 64;
    cq.wc_flags = unsigned{IBV_WC_STANDARD_FLAGS} | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
                  IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
    cq_ = ibv_create_cq_ex(context_, &cq);
    ASSERT_NE(cq_, nullptr);
    for (ibv_qp*& qp : qps_) {
      qp = create_qp(kAllOperations);
      ASSERT_NE(qp, nullptr);
    }
    connect(0, 1);
    connect(1, 0);
    ex_ = qp_to_qp_ex(qps_[0]);
    ASSERT_NE(ex_, nullptr);
  }
  void TearDown() override {
    for (ibv_qp* qp : qps_) EXPECT_EQ(destroy_qp(qp), 0);
    EXPECT_EQ(destroy_cq(ibv_cq_ex_to_cq(cq_)), 0);
  }

  ibv_qp* create_qp(uint64_t operations, ibv_qp_type type = IBV_QPT_RC) {
    ibv_qp_init_attr_ex init{};
    init.send_cq = init.recv_cq = ibv_cq_ex_to_cq(cq_);
    init.qp_type = type;
    init.cap = {.max_send_wr = kDepth,
                .max_recv_wr = kDepth,
                .max_send_sge = 2,
                .max_recv_sge = 2,
                .max_inline_data = kInlineBytes};
    init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    init.pd = node_.domain.get();
    init.send_ops_flags = operations;
    return ibv_create_qp_ex(context_, &init);
  }
  void connect(size_t from, size_t to, ibv_qp_state last = IBV_QPS_RTS) {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = 1;
    attributes.qp_access_flags = test::kAllAccess;
    ASSERT_EQ(modify_qp(qps_[from], &attributes,
                        IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
              0);
    attributes.qp_state = IBV_QPS_RTR;
    attributes.path_mtu = IBV_MTU_4096;
    attributes.dest_qp_num = qps_[to]->qp_num;
    attributes.max_dest_rd_atomic = 1;
    attributes.min_rnr_timer = 1;
    attributes.ah_attr.dlid = 1;
    attributes.ah_attr.port_num = 1;
    ASSERT_EQ(modify_qp(qps_[from], &attributes,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                            IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
              0);
    if (last == IBV_QPS_RTR) return;
    attributes.qp_state = IBV_QPS_RTS;
    attributes.max_rd_atomic = 1;
    attributes.rnr_retry = 7;
    ASSERT_EQ(modify_qp(qps_[from], &attributes,
                        IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                            IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC),
              0);
  }
  ibv_wc next() {
    ibv_wc wc{};
    EXPECT_EQ(ibv_poll_cq(ibv_cq_ex_to_cq(cq_), 1, &wc), 1);
    return wc;
  }
  bool is_empty() {
    ibv_wc wc{};
    return ibv_poll_cq(ibv_cq_ex_to_cq(cq_), 1, &wc) == 0;
  }
  void start(uint64_t id) {
    ibv_wr_start(ex_);
    ex_->wr_id = id;
    ex_->wr_flags = IBV_SEND_SIGNALED;
  }

  Node node_;
  ibv_context* context_ = nullptr;
  Buffer local_{node_, 4096};
  Buffer remote_{node_, 4096};
  ibv_cq_ex* cq_ = nullptr;
  ibv_qp* qps_[2] = {};
  ibv_qp_ex* ex_ = nullptr;
};

TEST_F(ExtendedTest, EveryOperationDoesWhatItsPostedOneDoes) {
  local_.fill(1, 0, 64);
  start(1);
  ibv_wr_rdma_write(ex_, remote_.key(), remote_.address());
  ibv_wr_set_sge(ex_, local_.key(), local_.address(), 64);
  ex_->wr_id = 2;
  ibv_wr_rdma_read(ex_, remote_.key(), remote_.address());
  ibv_wr_set_sge(ex_, local_.key(), local_.address(128), 64);
  EXPECT_FALSE(remote_.has(1, 0, 64)) << "posted before ibv_wr_complete()";
  ASSERT_EQ(ibv_wr_complete(ex_), 0);
  EXPECT_TRUE(remote_.has(1, 0, 64));
  EXPECT_EQ(std::memcmp(local_.data(), local_.data() + 128, 64), 0);
  ibv_wc wc = next();
  EXPECT_EQ(wc.wr_id, 1u);
  EXPECT_EQ(wc.opcode, IBV_WC_RDMA_WRITE);
  wc = next();
  EXPECT_EQ(wc.wr_id, 2u);
  EXPECT_EQ(wc.opcode, IBV_WC_RDMA_READ);

  remote_.at<uint64_t>(256) = 40;
  start(3);
  ibv_wr_atomic_fetch_add(ex_, remote_.key(), remote_.address(256), 2);
  ibv_wr_set_sge(ex_, local_.key(), local_.address(256), 8);
  ibv_wr_atomic_cmp_swp(ex_, remote_.key(), remote_.address(256), 42, 7);
  ibv_wr_set_sge(ex_, local_.key(), local_.address(264), 8);
  ASSERT_EQ(ibv_wr_complete(ex_), 0);
  EXPECT_EQ(local_.at<uint64_t>(256), 40u);
  EXPECT_EQ(local_.at<uint64_t>(264), 42u);
  EXPECT_EQ(remote_.at<uint64_t>(256), 7u);
  EXPECT_EQ(next().opcode, IBV_WC_FETCH_ADD);
  EXPECT_EQ(next().opcode, IBV_WC_COMP_SWAP);

  for (uint64_t id = 10; id < 13; ++id) {
    ASSERT_EQ(test::post_receive(qps_[1], id, {remote_.sge(512, 64)}), 0);
  }
  start(4);
  ibv_wr_send(ex_);
  ibv_wr_set_sge(ex_, local_.key(), local_.address(), 64);
  ibv_wr_send_imm(ex_, 77);
  ibv_wr_rdma_write_imm(ex_, remote_.key(), remote_.address(1024), 78);
  ibv_wr_set_sge(ex_, local_.key(), local_.address(), 64);
  ASSERT_EQ(ibv_wr_complete(ex_), 0);
  std::vector<ibv_wc> arrivals;
  for (int i = 0; i < 6; ++i) {
    const ibv_wc got = next();
    EXPECT_EQ(got.status, IBV_WC_SUCCESS);
    if ((got.opcode & IBV_WC_RECV) != 0) arrivals.push_back(got);
  }
  ASSERT_EQ(arrivals.size(), 3u);
  EXPECT_TRUE(remote_.has(1, 512, 64));
  EXPECT_EQ(arrivals[1].imm_data, 77u);
  EXPECT_EQ(arrivals[1].byte_len, 0u);
  EXPECT_EQ(arrivals[2].imm_data, 78u);
  EXPECT_EQ(arrivals[2].opcode, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_TRUE(remote_.has(1, 1024, 64));
}

TEST_F(ExtendedTest, ListsAreGathered) {
  local_.fill(5, 0, 64);
  start(1);
  ibv_wr_rdma_write(ex_, remote_.key(), remote_.address());
  const ibv_sge parts[] = {local_.sge(0, 24), local_.sge(24, 40)};
  ibv_wr_set_sge_list(ex_, 2, parts);
  ASSERT_EQ(ibv_wr_complete(ex_), 0);
  EXPECT_TRUE(remote_.has(5, 0, 64));
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
}

TEST_F(ExtendedTest, InlineDataIsTakenAtOnce) {
  char text[] = "taken at once";
  char more[] = "and in parts!";
  start(1);
  ibv_wr_rdma_write(ex_, remote_.key(), remote_.address());
  ibv_wr_set_inline_data(ex_, text, sizeof(text));
  ibv_wr_rdma_write(ex_, remote_.key(), remote_.address(64));
  const ibv_data_buf list[] = {{.addr = text, .length = 6}, {.addr = more, .length = sizeof(more)}};
  ibv_wr_set_inline_data_list(ex_, 2, list);
  text[0] = more[0] = '?';
  ASSERT_EQ(ibv_wr_complete(ex_), 0);
  EXPECT_STREQ(reinterpret_cast<char*>(remote_.data()), "taken at once");
  EXPECT_STREQ(reinterpret_cast<char*>(remote_.data()) + 64, "taken and in parts!");
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
}

// Also what waits for its receiver.
TEST_F(ExtendedTest, WhatWaitsKeepsItsData) {
  char text[] = "waits";
  start(1);
  ibv_wr_send(ex_);
  ibv_wr_set_inline_data(ex_, text, sizeof(text));
  ASSERT_EQ(ibv_wr_complete(ex_), 0);
  EXPECT_TRUE(is_empty());
  start(2);
  ibv_wr_send(ex_);
  ibv_wr_set_inline_data(ex_, text, 1);
  ibv_wr_abort(ex_);
  ASSERT_EQ(test::post_receive(qps_[1], 10, {remote_.sge(0, 64)}), 0);
  EXPECT_EQ(next().wr_id, 1u);
  EXPECT_EQ(next().wr_id, 10u);
  EXPECT_STREQ(reinterpret_cast<char*>(remote_.data()), "waits");
  EXPECT_TRUE(is_empty());
}

TEST_F(ExtendedTest, ABatchIsPostedAsAWholeOrNotAtAll) {
  const auto write = [this] {
    ibv_wr_rdma_write(ex_, remote_.key(), remote_.address());
    ibv_wr_set_sge(ex_, local_.key(), local_.address(), 8);
  };
  const auto expect_nothing = [this](int error) {
    EXPECT_EQ(ibv_wr_complete(ex_), error);
    EXPECT_TRUE(is_empty());
    EXPECT_EQ(remote_.at<uint64_t>(0), 0u);
  };
  local_.at<uint64_t>(0) = 1;
  start(1);
  write();
  ibv_wr_abort(ex_);
  start(1);
  for (uint32_t i = 0; i <= kDepth; ++i) write();
  expect_nothing(ENOMEM);
  const std::vector<ibv_sge> three(3, local_.sge(0, 8));
  start(1);
  write();
  write();
  ibv_wr_set_sge_list(ex_, 3, three.data());
  expect_nothing(EINVAL);
  char long_data[kInlineBytes + 1] = {};
  start(1);
  write();
  write();
  ibv_wr_set_inline_data(ex_, long_data, sizeof(long_data));
  expect_nothing(EINVAL);
  start(1);
  ibv_wr_set_sge(ex_, local_.key(), local_.address(), 8);  // of no request
  write();
  expect_nothing(EINVAL);
  EXPECT_EQ(ibv_wr_complete(ex_), EINVAL) << "without ibv_wr_start()";
  // As many as there is room for.
  start(1);
  for (uint32_t i = 0; i < kDepth; ++i) write();
  ASSERT_EQ(ibv_wr_complete(ex_), 0);
  start(2);
  write();
  EXPECT_EQ(ibv_wr_complete(ex_), ENOMEM);
  start(2);
  write();
  write();
  EXPECT_EQ(ibv_wr_complete(ex_), ENOMEM);
  for (uint32_t i = 0; i < kDepth; ++i) EXPECT_EQ(next().wr_id, 1u);
  EXPECT_TRUE(is_empty());
  EXPECT_EQ(remote_.at<uint64_t>(0), 1u);
}

TEST_F(ExtendedTest, OperationsThatWereNotAskedForAreRefused) {
  ibv_qp* qp = create_qp(IBV_QP_EX_WITH_SEND);
  ASSERT_NE(qp, nullptr);
  ibv_qp_ex* ex = qp_to_qp_ex(qp);
  ibv_wr_start(ex);
  ibv_wr_rdma_write(ex, 0, 0);
  EXPECT_EQ(ibv_wr_complete(ex), EINVAL);
  EXPECT_EQ(destroy_qp(qp), 0);
  ibv_wr_start(ex);
  ibv_wr_send(ex);
  ibv_wr_set_sge(ex, 0, 0, 0);
  EXPECT_EQ(ibv_wr_complete(ex), EINVAL) << "of a destroyed queue pair";
  errno = 0;
  EXPECT_EQ(create_qp(IBV_QP_EX_WITH_TSO), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
}

TEST_F(ExtendedTest, EachTransportHasItsOperations) {
  constexpr uint64_t kSends = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
  constexpr uint64_t kWrites = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
  const auto has = [this](ibv_qp_type type, uint64_t operations) {
    errno = 0;
    ibv_qp* qp = create_qp(operations, type);
    if (qp == nullptr) {
      EXPECT_EQ(errno, EOPNOTSUPP);
      return false;
    }
    EXPECT_EQ(destroy_qp(qp), 0);
    return true;
  };
  EXPECT_TRUE(has(IBV_QPT_UD, kSends));
  EXPECT_FALSE(has(IBV_QPT_UD, kSends | IBV_QP_EX_WITH_RDMA_WRITE));
  EXPECT_FALSE(has(IBV_QPT_UD, IBV_QP_EX_WITH_BIND_MW));
  EXPECT_TRUE(has(IBV_QPT_UC, kSends | kWrites));
  EXPECT_FALSE(has(IBV_QPT_UC, IBV_QP_EX_WITH_RDMA_READ));
  EXPECT_FALSE(has(IBV_QPT_UC, IBV_QP_EX_WITH_SEND_WITH_INV));
  EXPECT_TRUE(has(IBV_QPT_RC, kAllOperations));
}

// Often enough for the low byte of the key to wrap.
TEST_F(ExtendedTest, AWindowOfType1IsBoundAnyNumberOfTimes) {
  ibv_mw* window = ibv_alloc_mw(node_.domain.get(), IBV_MW_TYPE_1);
  ASSERT_NE(window, nullptr);
  ibv_mr* region = reg_mr(node_.domain.get(), remote_.data(), 4096, remote_.address(),
                          int{IBV_ACCESS_LOCAL_WRITE} | IBV_ACCESS_MW_BIND);
  ASSERT_NE(region, nullptr);
  for (uint64_t round = 1; round <= 600; ++round) {
    ibv_mw_bind bind{.wr_id = round,
                     .send_flags = IBV_SEND_SIGNALED,
                     .bind_info = {.mr = region,
                                   .addr = remote_.address(),
                                   .length = 8,
                                   .mw_access_flags = IBV_ACCESS_REMOTE_WRITE}};
    ASSERT_EQ(ibv_bind_mw(qps_[0], window, &bind), 0) << round;
    ASSERT_EQ(next().status, IBV_WC_SUCCESS);
    local_.at<uint64_t>(0) = round;
    start(round);
    ibv_wr_rdma_write(ex_, window->rkey, remote_.address());
    ibv_wr_set_sge(ex_, local_.key(), local_.address(), 8);
    ASSERT_EQ(ibv_wr_complete(ex_), 0);
    ASSERT_EQ(next().status, IBV_WC_SUCCESS) << round;
    ASSERT_EQ(remote_.at<uint64_t>(0), round);
  }
  EXPECT_EQ(ibv_dealloc_mw(window), 0);
  EXPECT_EQ(dereg_mr(region), 0);
}

class AtomicWriteTest : public ExtendedTest {
 protected:
  void SetUp() override {
    if (kAtomicWriteOperation == 0) GTEST_SKIP() << "these headers of libibverbs do not have it";
    ExtendedTest::SetUp();
  }
  // As ibv_wr_atomic_write(), which the oldest headers do not have.
  template <typename Extended>
  static void post(Extended* qp, uint32_t rkey, uint64_t address, const uint64_t& value) {
    if constexpr (HasAtomicWrite<Extended>) qp->wr_atomic_write(qp, rkey, address, &value);
  }
  ibv_wc_status status_of(uint32_t rkey, uint64_t address) {
    start(1);
    post(ex_, rkey, address, 5);
    EXPECT_EQ(ibv_wr_complete(ex_), 0);
    return next().status;
  }
};

TEST_F(AtomicWriteTest, EightBytesLand) {
  remote_.fill(9, 0, 64);
  uint64_t value = 0x1122334455667788;
  start(1);
  post(ex_, remote_.key(), remote_.address(8), value);
  value = 1;  // it was copied
  post(ex_, remote_.key(), remote_.address(16), value);
  EXPECT_TRUE(remote_.has(9, 0, 64)) << "posted before ibv_wr_complete()";
  ASSERT_EQ(ibv_wr_complete(ex_), 0);
  EXPECT_EQ(remote_.at<uint64_t>(8), 0x1122334455667788u);
  EXPECT_EQ(remote_.at<uint64_t>(16), 1u);
  for (int i = 0; i < 2; ++i) {
    const ibv_wc wc = next();
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.opcode, kAtomicWriteDone);
  }
  EXPECT_EQ(as_qp(&ex_->qp_base).counters->requests[kAtomicWrite], 2u);
}

TEST_F(AtomicWriteTest, AnUnalignedPlaceIsAnInvalidRequest) {
  EXPECT_EQ(status_of(remote_.key(), remote_.address(4)), IBV_WC_REM_INV_REQ_ERR);
}

TEST_F(AtomicWriteTest, WhatIsNotRegisteredIsAnAccessError) {
  EXPECT_EQ(status_of(remote_.key(), remote_.address(4096)), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(AtomicWriteTest, NeedsTheRightToWrite) {
  ibv_mr* region = reg_mr(node_.domain.get(), remote_.data(), 64, remote_.address(),
                          unsigned{IBV_ACCESS_LOCAL_WRITE} | IBV_ACCESS_REMOTE_ATOMIC);
  ASSERT_NE(region, nullptr);
  EXPECT_EQ(status_of(region->rkey, remote_.address()), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(dereg_mr(region), 0);
}

TEST_F(AtomicWriteTest, IsPostedByItsOwnCallOnly) {
  ibv_send_wr wr{};
  wr.opcode = kAtomicWrite;
  ibv_sge sge = local_.sge(0, 8);
  wr.sg_list = &sge;
  wr.num_sge = 1;
  ibv_send_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_send(qps_[0], &wr, &bad), EINVAL);
  EXPECT_EQ(create_qp(kAtomicWriteOperation, IBV_QPT_UC), nullptr);
}

TEST_F(ExtendedTest, ThreadsBuildOneAfterTheOther) {
  constexpr uint32_t kRounds = 200;
  const auto add = [this] {
    for (uint32_t i = 0; i < kRounds;) {
      ibv_wr_start(ex_);
      ex_->wr_flags = 0;
      ibv_wr_atomic_fetch_add(ex_, remote_.key(), remote_.address(), 1);
      ibv_wr_set_sge(ex_, local_.key(), local_.address(), 8);
      ex_->wr_flags = IBV_SEND_SIGNALED;
      ibv_wr_atomic_fetch_add(ex_, remote_.key(), remote_.address(8), 1);
      ibv_wr_set_sge(ex_, local_.key(), local_.address(), 8);
      const int error = ibv_wr_complete(ex_);
      ibv_wc wc{};
      while (ibv_poll_cq(ibv_cq_ex_to_cq(cq_), 1, &wc) == 1) {
      }
      if (error == 0) ++i;
    }
  };
  std::thread other(add);
  add();
  other.join();
  EXPECT_EQ(remote_.at<uint64_t>(0), 2 * kRounds);
  EXPECT_EQ(remote_.at<uint64_t>(8), 2 * kRounds);
}

// What arrives before a queue pair may send tells it that its peer may.
TEST_F(ExtendedTest, AnArrivalBeforeRtsIsAnEvent) {
  const auto event = [this] {
    ibv_async_event raised{};
    if (get_async_event(context_, &raised) != 0) return -1;
    ack_async_event(&raised);
    EXPECT_EQ(raised.element.qp, qps_[1]);
    return static_cast<int>(raised.event_type);
  };
  const auto exchange = [this] {
    ASSERT_EQ(test::post_receive(qps_[1], 9, {remote_.sge(0, 64)}), 0);
    start(8);
    ibv_wr_send(ex_);
    ASSERT_EQ(ibv_wr_complete(ex_), 0);
    EXPECT_EQ(next().wr_id, 8u);
    EXPECT_EQ(next().wr_id, 9u);
  };
  fcntl(context_->async_fd, F_SETFL, O_NONBLOCK);
  exchange();
  EXPECT_EQ(event(), -1) << "in RTS already";
  for (ibv_qp* qp : qps_) {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_RESET;
    ASSERT_EQ(modify_qp(qp, &attributes, IBV_QP_STATE), 0);
  }
  connect(1, 0, IBV_QPS_RTR);
  connect(0, 1);
  exchange();
  EXPECT_EQ(event(), IBV_EVENT_COMM_EST);
  exchange();
  EXPECT_EQ(event(), -1) << "once";
}

TEST_F(ExtendedTest, PollingReadsACompletionFieldByField) {
  ibv_poll_cq_attr attributes{};
  EXPECT_EQ(ibv_start_poll(cq_, &attributes), ENOENT);
  attributes.comp_mask = 1;
  EXPECT_EQ(ibv_start_poll(cq_, &attributes), EINVAL);
  attributes.comp_mask = 0;
  ibv_values_ex before{};
  before.comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
  ASSERT_EQ(ibv_query_rt_values_ex(context_, &before), 0);
  ASSERT_EQ(test::post_receive(qps_[1], 9, {remote_.sge(0, 64)}), 0);
  start(8);
  ibv_wr_send_imm(ex_, 5);
  ibv_wr_set_sge(ex_, local_.key(), local_.address(), 16);
  ASSERT_EQ(ibv_wr_complete(ex_), 0);
  ASSERT_EQ(ibv_start_poll(cq_, &attributes), 0);
  EXPECT_EQ(cq_->wr_id, 8u);
  EXPECT_EQ(cq_->status, IBV_WC_SUCCESS);
  EXPECT_EQ(ibv_wc_read_opcode(cq_), IBV_WC_SEND);
  EXPECT_EQ(ibv_wc_read_qp_num(cq_), qps_[0]->qp_num);
  const uint64_t first_ns = ibv_wc_read_completion_ts(cq_);
  EXPECT_GE(first_ns, static_cast<uint64_t>(before.raw_clock.tv_nsec));
  ASSERT_EQ(ibv_next_poll(cq_), 0);
  EXPECT_EQ(cq_->wr_id, 9u);
  EXPECT_EQ(ibv_wc_read_opcode(cq_), IBV_WC_RECV);
  EXPECT_EQ(ibv_wc_read_byte_len(cq_), 16u);
  EXPECT_EQ(ibv_wc_read_imm_data(cq_), 5u);
  EXPECT_EQ(ibv_wc_read_wc_flags(cq_), unsigned{IBV_WC_WITH_IMM});
  EXPECT_EQ(ibv_wc_read_qp_num(cq_), qps_[1]->qp_num);
  EXPECT_EQ(ibv_wc_read_src_qp(cq_), qps_[0]->qp_num);
  EXPECT_EQ(ibv_wc_read_vendor_err(cq_), 0u);
  EXPECT_EQ(ibv_wc_read_slid(cq_), 0u);
  EXPECT_EQ(ibv_wc_read_sl(cq_), 0u);
  EXPECT_EQ(ibv_wc_read_dlid_path_bits(cq_), 0u);
  EXPECT_GE(ibv_wc_read_completion_ts(cq_), first_ns);
  // After 2020.
  EXPECT_GT(ibv_wc_read_completion_wallclock_ns(cq_), 1'577'836'800'000'000'000u);
  EXPECT_EQ(ibv_next_poll(cq_), ENOENT);
  ibv_end_poll(cq_);
}

TEST_F(ExtendedTest, ADestroyedQueueHasNothing) {
  ibv_cq_init_attr_ex init{};
  init.cqe = 4;
  init.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
  init.flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
  ibv_cq_ex* cq = ibv_create_cq_ex(context_, &init);
  ASSERT_NE(cq, nullptr);
  EXPECT_EQ(destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
  ibv_poll_cq_attr attributes{};
  EXPECT_EQ(ibv_start_poll(cq, &attributes), EINVAL);
  EXPECT_EQ(resize_cq(ibv_cq_ex_to_cq(cq), 8), EINVAL);
}

TEST_F(ExtendedTest, AQueueMayIgnoreThatItIsFull) {
  ibv_cq_init_attr_ex init{};
  init.cqe = 2;
  init.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
  init.flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
  ibv_cq_ex* all = cq_;
  cq_ = ibv_create_cq_ex(context_, &init);
  ASSERT_NE(cq_, nullptr);
  ibv_qp* before = qps_[0];
  qps_[0] = create_qp(kAllOperations);
  connect(0, 1);
  ibv_qp_ex* ex = qp_to_qp_ex(qps_[0]);
  // The peer is connected to another one, so these wait until they are flushed.
  ibv_wr_start(ex);
  for (uint32_t i = 0; i < kDepth; ++i) {
    ex->wr_id = i;
    ibv_wr_send(ex);
  }
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  ASSERT_EQ(modify_qp(qps_[0], &attributes, IBV_QP_STATE), 0);
  EXPECT_EQ(next().wr_id, kDepth - 2);
  EXPECT_EQ(next().wr_id, kDepth - 1);
  EXPECT_TRUE(is_empty());
  EXPECT_EQ(destroy_qp(qps_[0]), 0);
  EXPECT_EQ(destroy_cq(ibv_cq_ex_to_cq(cq_)), 0);
  qps_[0] = before;
  cq_ = all;
}

TEST_F(ExtendedTest, AQueueIsResizedWithWhatItHolds) {
  ibv_cq* cq = ibv_cq_ex_to_cq(cq_);
  start(1);
  for (uint64_t i = 0; i < 4; ++i) {
    ex_->wr_id = i;
    ibv_wr_rdma_write(ex_, remote_.key(), remote_.address());
  }
  ASSERT_EQ(ibv_wr_complete(ex_), 0);
  EXPECT_EQ(resize_cq(cq, 3), EINVAL);
  EXPECT_EQ(cq->cqe, 64);
  EXPECT_EQ(resize_cq(cq, 0), EINVAL);
  EXPECT_EQ(resize_cq(cq, 4), 0);
  EXPECT_EQ(cq->cqe, 4);
  EXPECT_EQ(resize_cq(cq, 1000), 0);
  for (uint64_t i = 0; i < 4; ++i) EXPECT_EQ(next().wr_id, i);
}

TEST_F(ExtendedTest, ARegionIsRegisteredAnewUnderItsKey) {
  Buffer other(node_, 4096);
  ibv_mr* region =
      reg_mr(node_.domain.get(), remote_.data(), 4096, remote_.address(), test::kAllAccess);
  ASSERT_NE(region, nullptr);
  const uint32_t key = region->rkey;
  const auto write = [&](const Buffer& target) {
    start(1);
    ibv_wr_rdma_write(ex_, key, target.address());
    ibv_wr_set_sge(ex_, local_.key(), local_.address(), 8);
    EXPECT_EQ(ibv_wr_complete(ex_), 0);
    return next().status;
  };
  local_.at<uint64_t>(0) = 3;
  EXPECT_EQ(write(remote_), IBV_WC_SUCCESS);
  EXPECT_EQ(rereg_mr(region, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, other.data(), 4096, 0), 0);
  EXPECT_EQ(region->rkey, key);
  EXPECT_EQ(region->addr, other.data());
  EXPECT_EQ(write(other), IBV_WC_SUCCESS);
  EXPECT_EQ(other.at<uint64_t>(0), 3u);
  // What cannot be leaves it as it is.
  EXPECT_EQ(rereg_mr(region, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, nullptr, 4096, 0),
            IBV_REREG_MR_ERR_INPUT);
  EXPECT_EQ(rereg_mr(region, 0, nullptr, nullptr, 0, 0), IBV_REREG_MR_ERR_INPUT);
  EXPECT_EQ(rereg_mr(region, IBV_REREG_MR_CHANGE_PD, nullptr, nullptr, 0, 0),
            IBV_REREG_MR_ERR_INPUT);
  EXPECT_EQ(write(other), IBV_WC_SUCCESS);
  ibv_pd* domain = alloc_pd(context_);
  EXPECT_EQ(rereg_mr(region, IBV_REREG_MR_CHANGE_PD, domain, nullptr, 0, 0), 0);
  EXPECT_EQ(dealloc_pd(domain), EBUSY);
  EXPECT_EQ(write(other), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(dereg_mr(region), 0);
  EXPECT_EQ(dealloc_pd(domain), 0);
}

TEST_F(ExtendedTest, DeviceMemoryIsReachedByItsRegionsOnly) {
  ibv_device_attr_ex device{};
  ASSERT_EQ(ibv_query_device_ex(context_, nullptr, &device), 0);
  ibv_alloc_dm_attr attributes{};
  attributes.length = device.max_dm_size + 1;
  errno = 0;
  EXPECT_EQ(ibv_alloc_dm(context_, &attributes), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_THAT(last_error(), testing::HasSubstr("ibv_free_dm"));
  attributes.length = 256;
  ibv_dm* memory = ibv_alloc_dm(context_, &attributes);
  ASSERT_NE(memory, nullptr);
  uint64_t word = 9;
  EXPECT_EQ(ibv_memcpy_to_dm(memory, 8, &word, sizeof(word)), 0);
  EXPECT_EQ(ibv_memcpy_to_dm(memory, 2, &word, sizeof(word)), EFAULT);
  EXPECT_EQ(ibv_memcpy_to_dm(memory, 256, &word, 4), EFAULT);
  EXPECT_EQ(ibv_memcpy_from_dm(&word, memory, ~uint64_t{3}, 8), EFAULT);
  constexpr unsigned kAccess = test::kAllAccess | IBV_ACCESS_ZERO_BASED;
  EXPECT_EQ(ibv_reg_dm_mr(node_.domain.get(), memory, 0, 260, kAccess), nullptr);
  EXPECT_EQ(ibv_reg_dm_mr(node_.domain.get(), memory, 0, 8, test::kAllAccess), nullptr);
  ibv_mr* region = ibv_reg_dm_mr(node_.domain.get(), memory, 8, 8, kAccess);
  ASSERT_NE(region, nullptr);
  EXPECT_EQ(ibv_free_dm(memory), EBUSY);
  start(1);
  ibv_wr_atomic_fetch_add(ex_, region->rkey, 0, 4);
  ibv_wr_set_sge(ex_, local_.key(), local_.address(), 8);
  ASSERT_EQ(ibv_wr_complete(ex_), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(local_.at<uint64_t>(0), 9u);
  EXPECT_EQ(ibv_memcpy_from_dm(&word, memory, 8, sizeof(word)), 0);
  EXPECT_EQ(word, 13u);
  EXPECT_EQ(dereg_mr(region), 0);
  EXPECT_EQ(ibv_free_dm(memory), 0);
  EXPECT_EQ(ibv_free_dm(memory), EINVAL);
  EXPECT_EQ(ibv_memcpy_from_dm(&word, memory, 8, sizeof(word)), EINVAL) << "or a valid errno";
}

TEST_F(ExtendedTest, AParentDomainIsItsDomain) {
  ibv_td_init_attr threads{};
  ibv_parent_domain_init_attr attributes{};
  attributes.pd = node_.domain.get();
  attributes.td = ibv_alloc_td(context_, &threads);
  ASSERT_NE(attributes.td, nullptr);
  ibv_pd* domain = ibv_alloc_parent_domain(context_, &attributes);
  ASSERT_NE(domain, nullptr);
  EXPECT_EQ(ibv_dealloc_td(attributes.td), EBUSY);
  ibv_mr* region = reg_mr(domain, remote_.data(), 4096, remote_.address(), test::kAllAccess);
  ASSERT_NE(region, nullptr);
  start(1);
  ibv_wr_rdma_write(ex_, region->rkey, remote_.address());
  ibv_wr_set_sge(ex_, local_.key(), local_.address(), 8);
  ASSERT_EQ(ibv_wr_complete(ex_), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(dealloc_pd(domain), EBUSY);
  EXPECT_EQ(dereg_mr(region), 0);
  ibv_cq_init_attr_ex init{};
  init.cqe = 4;
  init.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD;
  init.parent_domain = domain;
  ibv_cq_ex* queue = ibv_create_cq_ex(context_, &init);
  ASSERT_NE(queue, nullptr);
  EXPECT_EQ(dealloc_pd(domain), EBUSY);
  EXPECT_EQ(destroy_cq(ibv_cq_ex_to_cq(queue)), 0);
  EXPECT_EQ(dealloc_pd(domain), 0);
  EXPECT_EQ(ibv_dealloc_td(attributes.td), 0);
}

TEST_F(ExtendedTest, AdviceIsOfRegisteredMemory) {
  ibv_sge part = local_.sge(0, 64);
  ibv_pd* domain = node_.domain.get();
  EXPECT_EQ(ibv_advise_mr(domain, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 0, &part, 1), 0);
  EXPECT_EQ(
      ibv_advise_mr(domain, IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_FLAG_FLUSH, &part, 1), 0);
  EXPECT_EQ(ibv_advise_mr(domain, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &part, 0), EINVAL);
  part.lkey ^= 1;
  EXPECT_EQ(ibv_advise_mr(domain, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &part, 1), EFAULT);
}

TEST_F(ExtendedTest, TheContextSaysWhatItHas) {
  EXPECT_NE(verbs_get_ctx(context_), nullptr);
  EXPECT_EQ(ibv_create_counters(context_, nullptr), nullptr);
  ibv_modify_cq_attr moderation{};
  EXPECT_EQ(ibv_modify_cq(ibv_cq_ex_to_cq(cq_), &moderation), EOPNOTSUPP);
  ibv_device_attr_ex device{};
  ASSERT_EQ(ibv_query_device_ex(context_, nullptr, &device), 0);
  EXPECT_EQ(device.hca_core_clock, 1'000'000u);
  EXPECT_NE(device.completion_timestamp_mask, 0u);
  EXPECT_NE(device.orig_attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B, 0u);
}

}  // namespace
}  // namespace verbena::soft
