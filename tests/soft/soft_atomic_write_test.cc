// ATOMIC WRITE, within a process and between two.
#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "src/device/soft/atomic_write.h"
#include "src/device/soft_library.h"
#include "tests/soft/places.h"
#include "tests/soft/responder.h"
#include "tests/soft/verbs.h"

namespace verbena::soft_test {
namespace {

// As ibv_wr_atomic_write(), which the oldest headers do not have.
template <typename Extended>
void write_atomically(Extended* qp, uint32_t rkey, uint64_t address, const uint64_t& value) {
  if constexpr (soft::HasAtomicWrite<Extended>) qp->wr_atomic_write(qp, rkey, address, &value);
}

class AtomicWriteTest : public testing::TestWithParam<Place> {
 protected:
  void SetUp() override {
    if (soft::kAtomicWriteOperation == 0) {
      GTEST_SKIP() << "these headers of libibverbs do not have it";
    }
    ibv_qp_init_attr_ex init{};
    init.send_cq = init.recv_cq = cq_.get();
    init.qp_type = IBV_QPT_RC;
    init.cap = {.max_send_wr = 16,
                .max_recv_wr = 1,
                .max_send_sge = 1,
                .max_recv_sge = 1,
                .max_inline_data = 0};
    init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    init.pd = node_.domain.get();
    init.send_ops_flags = soft::kAtomicWriteOperation;
    qp_ = ibv_create_qp_ex(node_.device.get(), &init);
    ASSERT_NE(qp_, nullptr);
    batches_ = reinterpret_cast<ibv_qp_ex*>(qp_);  // its first member is the queue pair
  }
  void TearDown() override {
    if (qp_ == nullptr) return;
    EXPECT_EQ(control_.destroy_qp(qp_), 0);
  }

  void connect_to(Responder& responder) {
    QueuePairAddress own = end_.address();  // the port's
    own.queue_pair_number = qp_->qp_num;
    responder.connect(own);
    ibv_qp_attr attributes{};
    attributes.port_num = 1;
    attributes.path_mtu = IBV_MTU_4096;
    attributes.dest_qp_num = responder.address().queue_pair_number;
    attributes.min_rnr_timer = 1;
    attributes.ah_attr.dlid = own.lid;
    attributes.ah_attr.port_num = 1;
    attributes.timeout = 14;
    attributes.retry_cnt = 7;
    const std::pair<ibv_qp_state, int> steps[] = {
        {IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
        {IBV_QPS_RTR, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER},
        {IBV_QPS_RTS, IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                          IBV_QP_MAX_QP_RD_ATOMIC}};
    for (const auto& [state, mask] : steps) {
      attributes.qp_state = state;
      ASSERT_EQ(control_.modify_qp(qp_, &attributes, mask | IBV_QP_STATE), 0);
    }
  }
  ibv_wc write_value(uint32_t rkey, uint64_t address, uint64_t value) {
    ibv_wr_start(batches_);
    batches_->wr_flags = IBV_SEND_SIGNALED;
    write_atomically(batches_, rkey, address, value);
    EXPECT_EQ(ibv_wr_complete(batches_), 0);
    return wait_for_one(cq_.get());
  }

  const VerbsControl& control_ = *must(load_soft_rnic())->control;
  Node node_;
  End end_{node_};
  CompletionQueue cq_ = must(CompletionQueue::create(node_.device, {.depth_cqes = 32}));
  ibv_qp* qp_ = nullptr;
  ibv_qp_ex* batches_ = nullptr;
};

INSTANTIATE_TEST_SUITE_P(Places, AtomicWriteTest, all_places(), name_by_place);

TEST_P(AtomicWriteTest, EightBytesLand) {
  Responder responder(GetParam());
  connect_to(responder);
  const Responder::Memory remote = responder.add_buffer(64);
  responder.fill({0, 0, 64}, 1);
  const uint64_t before = responder.load(0, 0);
  const ibv_wc wc = write_value(remote.key, remote.address + 8, 0x1122334455667788);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, soft::kAtomicWriteDone);
  EXPECT_EQ(responder.load(0, 8), 0x1122334455667788u);
  EXPECT_EQ(responder.load(0, 0), before);
}

TEST_P(AtomicWriteTest, AnUnalignedPlaceIsRefused) {
  Responder responder(GetParam());
  connect_to(responder);
  const Responder::Memory remote = responder.add_buffer(64);
  EXPECT_EQ(write_value(remote.key, remote.address + 4, 1).status, IBV_WC_REM_INV_REQ_ERR);
  EXPECT_EQ(responder.wait_for_event(), IBV_EVENT_QP_REQ_ERR);
}

TEST_P(AtomicWriteTest, MemoryThatMayNotBeWrittenIsRefused) {
  Responder responder(GetParam());
  connect_to(responder);
  const Responder::Memory remote =
      responder.add_buffer(64, unsigned{IBV_ACCESS_LOCAL_WRITE} | IBV_ACCESS_REMOTE_ATOMIC);
  responder.store(0, 0, 3);
  EXPECT_EQ(write_value(remote.key, remote.address, 1).status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(responder.wait_for_event(), IBV_EVENT_QP_ACCESS_ERR);
  EXPECT_EQ(responder.load(0, 0), 3u);
}

}  // namespace
}  // namespace verbena::soft_test
