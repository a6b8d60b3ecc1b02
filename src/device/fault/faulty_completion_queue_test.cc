#include "src/device/fault/faulty_completion_queue.h"

#include <gtest/gtest.h>

#include <vector>

namespace verbena::fault {
namespace {

// A device's completion queue, of which there is only what waits in it.
std::vector<ibv_wc> waiting;

int poll_waiting(ibv_cq* /*verbs*/, int count, ibv_wc* completions) {
  int taken = 0;
  for (; taken < count && !waiting.empty(); ++taken) {
    completions[taken] = waiting.front();
    waiting.erase(waiting.begin());
  }
  return taken;
}

ibv_wc completion(uint64_t wr_id, ibv_wc_status status) {
  ibv_wc made{};
  made.wr_id = wr_id;
  made.status = status;
  made.qp_num = 1;
  return made;
}

class FaultyCompletionQueueTest : public testing::Test {
 protected:
  FaultyCompletionQueueTest() { waiting.clear(); }
  // All of them, by what they say.
  std::vector<ibv_wc_status> poll() {
    std::vector<ibv_wc_status> found;
    uint64_t delayed_count = 0;
    for (ibv_wc one{}; queue_.poll(1, &one, delayed_count) == 1;) found.push_back(one.status);
    return found;
  }

  FaultyCompletionQueue queue_{nullptr, poll_waiting, Fault{}, Dice(1, Stream::kCompletion, 0)};
};

TEST_F(FaultyCompletionQueueTest, AFlushedRequestCompletesWithTheExpectedStatus) {
  queue_.expect(completion(7, IBV_WC_LOC_QP_OP_ERR));
  waiting = {completion(6, IBV_WC_WR_FLUSH_ERR), completion(7, IBV_WC_WR_FLUSH_ERR)};
  EXPECT_EQ(poll(), (std::vector{IBV_WC_WR_FLUSH_ERR, IBV_WC_LOC_QP_OP_ERR}));
}

TEST_F(FaultyCompletionQueueTest, WhatTheDeviceDoesNotFlushComesBehindItsOwn) {
  queue_.expect(completion(7, IBV_WC_LOC_QP_OP_ERR));
  queue_.add_expected(completion(7, IBV_WC_LOC_QP_OP_ERR));
  waiting = {completion(6, IBV_WC_SUCCESS)};
  EXPECT_EQ(poll(), (std::vector{IBV_WC_SUCCESS, IBV_WC_LOC_QP_OP_ERR}));
}

// Programs give many requests one number. A thread polls between the two calls.
TEST_F(FaultyCompletionQueueTest, AnotherRequestOfTheSameNumberMayBeFlushedMeanwhile) {
  queue_.expect(completion(7, IBV_WC_LOC_QP_OP_ERR));
  waiting = {completion(7, IBV_WC_WR_FLUSH_ERR)};
  EXPECT_EQ(poll(), std::vector{IBV_WC_LOC_QP_OP_ERR});
  queue_.add_expected(completion(7, IBV_WC_LOC_QP_OP_ERR));
  EXPECT_EQ(poll(), std::vector{IBV_WC_WR_FLUSH_ERR});
  EXPECT_EQ(poll(), std::vector<ibv_wc_status>{});
}

}  // namespace
}  // namespace verbena::fault
