// Unreliable connections within one process.
#include "src/device/soft/uc.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "src/device/soft/datagram_end_for_test.h"

namespace verbena::soft {
namespace {

constexpr size_t kTargetAt = 128 * 1024;

// A UC queue pair with a completion queue of its own.
class UnreliableEnd {
 public:
  explicit UnreliableEnd(const test::Node& node) {
    cq_ = create_cq(node.domain.get()->context, 64, nullptr, nullptr, 0);
    ibv_qp_init_attr init{};
    init.send_cq = cq_;
    init.recv_cq = cq_;
    init.cap = {.max_send_wr = 16,
                .max_recv_wr = 16,
                .max_send_sge = 2,
                .max_recv_sge = 2,
                .max_inline_data = 64};
    init.qp_type = IBV_QPT_UC;
    qp_ = create_qp(node.domain.get(), &init);
    if (qp_ == nullptr) std::abort();
  }
  UnreliableEnd(const UnreliableEnd&) = delete;
  UnreliableEnd& operator=(const UnreliableEnd&) = delete;
  ~UnreliableEnd() {
    destroy_qp(qp_);
    destroy_cq(cq_);
  }
  ibv_qp* qp() const { return qp_; }
  int modify(ibv_qp_state state, int mask, uint32_t peer = 0) {
    ibv_qp_attr attributes{};
    attributes.qp_state = state;
    attributes.port_num = 1;
    attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    attributes.path_mtu = IBV_MTU_4096;
    attributes.dest_qp_num = peer;
    return modify_qp(qp_, &attributes, IBV_QP_STATE | mask);
  }
  void connect(const UnreliableEnd& peer) {
    ASSERT_EQ(modify(IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
    ASSERT_EQ(modify(IBV_QPS_RTR, kToReady, peer.qp()->qp_num), 0) << last_error();
    ASSERT_EQ(modify(IBV_QPS_RTS, IBV_QP_SQ_PSN), 0);
  }
  static constexpr int kToReady = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  ibv_wc take() {
    ibv_wc wc{};
    wc.status = static_cast<ibv_wc_status>(-1);
    // Within one process everything is there when the post returns.
    EXPECT_EQ(ibv_poll_cq(cq_, 1, &wc), 1);
    return wc;
  }
  bool is_empty() {
    ibv_wc wc;
    return ibv_poll_cq(cq_, 1, &wc) == 0;
  }

 private:
  ibv_cq* cq_ = nullptr;
  ibv_qp* qp_ = nullptr;
};

class UnreliableConnectionTest : public testing::Test {
 protected:
  void SetUp() override {
    a_.connect(b_);
    b_.connect(a_);
    buffer_.fill(3, 0, 64 * 1024);
  }
  verbena::test::SendRequest request(ibv_wr_opcode opcode, size_t size_bytes) {
    return {.opcode = opcode,
            .sges = {buffer_.sge(0, size_bytes)},
            .remote_address = buffer_.address(kTargetAt),
            .rkey = buffer_.key(),
            .immediate = 77};
  }
  bool target_has(size_t size_bytes) {
    return memcmp(buffer_.data() + kTargetAt, buffer_.data(), size_bytes) == 0;
  }
  test::Node node_;
  test::Buffer buffer_{node_, 256 * 1024};
  UnreliableEnd a_{node_};
  UnreliableEnd b_{node_};
};

TEST_F(UnreliableConnectionTest, CarriesSendsAndWrites) {
  for (const size_t size_bytes : {1, 100, 113, 64 * 1024}) {
    memset(buffer_.data() + kTargetAt, 0, 64 * 1024);
    ASSERT_EQ(test::post_receive(b_.qp(), 5, {buffer_.sge(kTargetAt, 64 * 1024)}), 0);
    ASSERT_EQ(verbena::test::post(a_.qp(), request(IBV_WR_SEND_WITH_IMM, size_bytes)), 0);
    EXPECT_EQ(a_.take().status, IBV_WC_SUCCESS);
    const ibv_wc wc = b_.take();
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.byte_len, size_bytes);
    EXPECT_EQ(wc.imm_data, 77u);
    EXPECT_TRUE(target_has(size_bytes));

    memset(buffer_.data() + kTargetAt, 0, 64 * 1024);
    ASSERT_EQ(verbena::test::post(a_.qp(), request(IBV_WR_RDMA_WRITE, size_bytes)), 0);
    EXPECT_EQ(a_.take().opcode, IBV_WC_RDMA_WRITE);
    EXPECT_TRUE(target_has(size_bytes));
  }
  ASSERT_EQ(test::post_receive(b_.qp(), 6, {}), 0);
  ASSERT_EQ(verbena::test::post(a_.qp(), request(IBV_WR_RDMA_WRITE_WITH_IMM, 9)), 0);
  EXPECT_EQ(a_.take().status, IBV_WC_SUCCESS);
  EXPECT_EQ(b_.take().opcode, IBV_WC_RECV_RDMA_WITH_IMM);
}

TEST_F(UnreliableConnectionTest, WhatThePeerCannotTakeVanishes) {
  for (const ibv_wr_opcode opcode : {IBV_WR_SEND, IBV_WR_RDMA_WRITE_WITH_IMM}) {
    ASSERT_EQ(verbena::test::post(a_.qp(), request(opcode, 8)), 0);  // no receive
    EXPECT_EQ(a_.take().status, IBV_WC_SUCCESS);
  }
  ASSERT_EQ(test::post_receive(b_.qp(), 5, {buffer_.sge(kTargetAt, 64)}), 0);
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM}) {
    auto wrong = request(opcode, 8);
    wrong.rkey += 1;
    ASSERT_EQ(verbena::test::post(a_.qp(), wrong), 0);
    EXPECT_EQ(a_.take().status, IBV_WC_SUCCESS);
  }
  EXPECT_TRUE(b_.is_empty());
  EXPECT_EQ(as_qp(a_.qp()).counters->dropped, 4u);
  EXPECT_EQ(a_.qp()->state, IBV_QPS_RTS);
  EXPECT_EQ(b_.qp()->state, IBV_QPS_RTS);
  ASSERT_EQ(verbena::test::post(a_.qp(), request(IBV_WR_SEND, 8)), 0);
  EXPECT_EQ(b_.take().wr_id, 5u);
}

TEST_F(UnreliableConnectionTest, APeerThatIsGoneIsNotNoticed) {
  ASSERT_EQ(test::move_to(b_.qp(), IBV_QPS_ERR), 0);
  ASSERT_EQ(verbena::test::post(a_.qp(), request(IBV_WR_SEND, 8)), 0);
  EXPECT_EQ(a_.take().status, IBV_WC_SUCCESS);
  EXPECT_EQ(a_.qp()->state, IBV_QPS_RTS);
}

TEST_F(UnreliableConnectionTest, AnErrorOfItsOwnFailsTheSendQueue) {
  auto wrong = request(IBV_WR_SEND, 8);
  wrong.sges[0].lkey += 1;
  ASSERT_EQ(verbena::test::post(a_.qp(), wrong), 0);
  EXPECT_EQ(a_.take().status, IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(a_.qp()->state, IBV_QPS_SQE);
  ASSERT_EQ(a_.modify(IBV_QPS_RTS, 0), 0);
  ASSERT_EQ(verbena::test::post(a_.qp(), request(IBV_WR_RDMA_WRITE, 8)), 0);
  EXPECT_EQ(a_.take().status, IBV_WC_SUCCESS);
  EXPECT_TRUE(target_has(8));
}

TEST_F(UnreliableConnectionTest, RefusesWhatOnlyReliableOnesCan) {
  EXPECT_EQ(verbena::test::post(a_.qp(), request(IBV_WR_RDMA_READ, 8)), EINVAL);
  EXPECT_EQ(verbena::test::post(a_.qp(), request(IBV_WR_ATOMIC_FETCH_AND_ADD, 8)), EINVAL);
  UnreliableEnd c(node_);
  ASSERT_EQ(c.modify(IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
  EXPECT_EQ(c.modify(IBV_QPS_RTR, UnreliableEnd::kToReady | IBV_QP_MIN_RNR_TIMER), EINVAL);
  EXPECT_NE(std::string(last_error()).find("UC"), std::string::npos);
  // A queue pair of another transport does not hear it.
  verbena::test::End reliable(node_);
  ASSERT_EQ(c.modify(IBV_QPS_RTR, UnreliableEnd::kToReady, reliable.qp()->qp_num), 0);
  EXPECT_EQ(c.modify(IBV_QPS_RTS, IBV_QP_SQ_PSN | IBV_QP_TIMEOUT), EINVAL);
  ASSERT_EQ(c.modify(IBV_QPS_RTS, IBV_QP_SQ_PSN), 0);
  ASSERT_EQ(verbena::test::post(c.qp(), request(IBV_WR_RDMA_WRITE, 8)), 0);
  EXPECT_EQ(c.take().status, IBV_WC_SUCCESS);
  EXPECT_FALSE(target_has(8));
}

}  // namespace
}  // namespace verbena::soft
