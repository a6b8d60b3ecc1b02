// Peers whose queue pair is gone, or has another peer by now: what stands where it told of its
// accesses says nothing of this process's memory.
#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <cstdint>
#include <optional>

#include "src/device/soft/control.h"
#include "src/device/soft/objects.h"
#include "src/device/verbs_control.h"
#include "tests/soft/responder.h"
#include "tests/soft/verbs.h"

namespace verbena::soft_test {
namespace {

class FreedPeerTest : public testing::Test {
 protected:
  void SetUp() override {
    responder_.connect(*end_);
    const auto target = responder_.add_buffer(4096);
    ASSERT_EQ(post(end_->qp(), {.opcode = IBV_WR_RDMA_WRITE,
                                .sges = {buffer_->sge(0, 8)},
                                .remote_address = target.address,
                                .rkey = target.key}),
              0);
    ASSERT_EQ(wait_for_one(end_->cq()).status, IBV_WC_SUCCESS);
  }
  // What says of the queue pair that is there that it is in the middle of an access.
  void pretend_flight() { soft::as_qp(end_->qp()).peer.shared->in_flight.store(1); }
  int reset() {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_RESET;
    return soft::modify_qp(end_->qp(), &attributes, IBV_QP_STATE);
  }

  Node node_;
  std::optional<Buffer> buffer_{std::in_place, node_.domain, 4096};
  std::optional<End> end_{std::in_place, node_};
  Responder responder_{Place::kOtherProcess};
};

TEST_F(FreedPeerTest, OneThatIsThereIsWaitedFor) {
  pretend_flight();
  EXPECT_EQ(reset(), EBUSY);
  soft::as_qp(end_->qp()).peer.shared->in_flight.store(2);
  EXPECT_EQ(reset(), 0);
}

TEST_F(FreedPeerTest, MemoryOfADestroyedOneIsNotBelieved) {
  responder_.destroy_queue_pair();
  pretend_flight();
  EXPECT_EQ(reset(), 0) << node_.control().last_error();
}

TEST_F(FreedPeerTest, OneWithAnotherPeerIsNotWaitedFor) {
  End other(node_);
  responder_.reset();
  responder_.connect(other);
  pretend_flight();
  EXPECT_EQ(reset(), 0) << node_.control().last_error();
  soft::as_qp(other.qp()).peer.shared->in_flight.store(2);
}

}  // namespace
}  // namespace verbena::soft_test
