// What a queue pair that breaks on purpose is counted as, on a device of which there is only what
// the fault needs.
#include "src/device/fault/faulty_queue_pair.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <memory>

#include "src/base/runtime.h"

namespace verbena::fault {
namespace {

constexpr uint64_t kPatienceNs = 120'000'000'000;

class FaultyQueuePairTest : public testing::Test {
 protected:
  FaultyQueuePairTest() {
    current = this;
    control_.modify_qp = [](ibv_qp* /*qp*/, ibv_qp_attr* attributes, int /*mask*/) {
      EXPECT_EQ(attributes->qp_state, IBV_QPS_ERR);
      current->counted_at_error_ = current->parts_.queue_pair_errors.load();
      current->asked_ = true;
      return current->answer_;
    };
    parts_.control = &control_;
    parts_.ops.post_send = [](ibv_qp* /*qp*/, ibv_send_wr* /*list*/, ibv_send_wr** /*rejected*/) {
      return 0;
    };
    parts_.plan.queue_pair_error = 1;
  }

  // Posts the work request that draws the error, and waits until the device is told.
  void provoke() {
    ibv_qp_init_attr granted{};
    granted.cap.max_send_wr = 1;
    queue_pair_ = FaultyQueuePair::create(parts_, &verbs_, granted, {}, 0);
    queue_pair_->after_state(IBV_QPS_RTS);
    ibv_send_wr request{};
    ibv_send_wr* rejected = nullptr;
    ASSERT_EQ(queue_pair_->post_send(&request, &rejected), 0);
    ASSERT_TRUE(comes_true([this] { return asked_.load(); }));
  }

  template <typename Condition>
  static bool comes_true(Condition&& condition) {
    Waiter waiter;
    const uint64_t start_ns = now_ns();
    while (!condition()) {
      if (now_ns() - start_ns > kPatienceNs) return false;
      waiter.idle();
    }
    return true;
  }

  static inline FaultyQueuePairTest* current = nullptr;
  VerbsControl control_{};
  ibv_qp verbs_{};
  int answer_ = 0;
  std::atomic<bool> asked_{false};
  std::atomic<uint64_t> counted_at_error_{0};
  std::shared_ptr<FaultyQueuePair> queue_pair_;
  DeviceParts parts_;  // ends first: its thread uses the rest
};

TEST_F(FaultyQueuePairTest, WhoMeetsAnErrorFindsItCounted) {
  provoke();
  EXPECT_EQ(counted_at_error_, 1u);
  EXPECT_EQ(parts_.queue_pair_errors, 1u);
}

TEST_F(FaultyQueuePairTest, AnErrorThatTheDeviceRefusesCountsForNothing) {
  answer_ = EINVAL;
  provoke();
  EXPECT_TRUE(comes_true([this] { return parts_.queue_pair_errors == 0; }));
}

}  // namespace
}  // namespace verbena::fault
