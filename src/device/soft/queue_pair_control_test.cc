// Steps between states while something else happens to the queue pair.
#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <atomic>
#include <cerrno>

#include "src/base/runtime.h"
#include "src/device/soft/control.h"
#include "src/device/soft/objects.h"
#include "src/device/verbs_for_test.h"

namespace verbena::soft {
namespace {

constexpr int kReadyToSendMask = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                 IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;

// What a peer, or the own process's service thread, has failed stays so.
TEST(QueuePairControlTest, AStepDoesNotUndoAFailureMeanwhile) {
  const verbena::test::Node node;
  verbena::test::End end(node);
  ibv_qp_attr ready{};
  ready.ah_attr.port_num = 1;
  ready.ah_attr.dlid = 1;
  ready.path_mtu = IBV_MTU_4096;
  ready.dest_qp_num = end.qp()->qp_num;
  ready.qp_state = IBV_QPS_RTR;
  ASSERT_EQ(modify_qp(end.qp(), &ready,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
            0)
      << last_error();
  ready.qp_state = IBV_QPS_RTS;
  Qp& qp = as_qp(end.qp());
  int error = 0;
  Thread stepping;
  {
    const OwnerLock::Guard guard(qp.send_lock);
    stepping =
        start_thread("stepping", [&] { error = modify_qp(end.qp(), &ready, kReadyToSendMask); });
    // It gets as far as the lock. If it does not, it finds the failure at once.
    Waiter waiter;
    while (qp.control.try_lock()) {
      qp.control.unlock();
      waiter.idle();
    }
    for (int i = 0; i < 100; ++i) waiter.idle();
    fail_queue_pair_locked(qp, IBV_WC_WR_FLUSH_ERR, kNoEvent);
  }
  stepping.join();
  EXPECT_EQ(error, EINVAL);
  EXPECT_EQ(qp.state.load(), IBV_QPS_ERR);
}

}  // namespace
}  // namespace verbena::soft
