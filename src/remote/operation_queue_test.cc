#include "src/remote/operation_queue.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <deque>

#include "src/base/runtime.h"
#include "src/channel/fake_queue_for_test.h"

namespace verbena::remote {
namespace {

using channel::FakeQueue;

bool post_one(OperationQueue& queue, uint64_t token) {
  queue.add(IBV_WR_RDMA_WRITE, 0, 1).sg_list[0] = {.addr = token, .length = 8, .lkey = 1};
  return queue.commit({.token = token, .bytes = nullptr, .size_bytes = 0});
}

TEST(OperationQueueTest, OperationsComeBackInTheirOrderWhateverTheSizes) {
  const uint64_t seed = run_seed();
  SCOPED_TRACE(seed);
  Random random(seed);
  for (int round = 0; round < 200; ++round) {
    OperationQueueSizes sizes;
    sizes.pending = 1 + static_cast<uint32_t>(random.below(20));
    sizes.signal_interval = 1 + static_cast<uint32_t>(random.below(sizes.pending));
    sizes.post_batch = 1 + static_cast<uint32_t>(random.below(sizes.pending));
    FakeQueue device;
    OperationQueue queue(device.queue_pair(), device.completions(), sizes);
    uint64_t posted = 0;
    uint64_t taken = 0;
    while (taken < 200) {
      while (posted < 200 && queue.has_room() && random.below(4) != 0) {
        ASSERT_TRUE(post_one(queue, posted++));
      }
      ASSERT_EQ(queue.outstanding(), posted - taken);
      ASSERT_LE(queue.outstanding(), sizes.pending);
      ASSERT_TRUE(queue.flush());
      if (queue.is_silent()) {
        ASSERT_TRUE(queue.ask(0, 0));
      }
      device.complete_sends();
      ASSERT_TRUE(queue.reap());
      for (uint32_t i = queue.done(); i > 0; --i) ASSERT_EQ(queue.take().token, taken++);
    }
    EXPECT_EQ(queue.outstanding(), 0u);
    for (const auto& list : device.sends) EXPECT_LE(list.size(), sizes.post_batch);
  }
}

TEST(OperationQueueTest, WhatIsWaitedForTakesTheListAlongAndLeavesNothingBehind) {
  FakeQueue device;
  OperationQueue queue(device.queue_pair(), device.completions(),
                       {.pending = 4, .signal_interval = 4, .post_batch = 4});
  for (uint64_t token = 0; token < 4; ++token) {
    if (token == 3) break;
    ASSERT_TRUE(post_one(queue, token));
  }
  EXPECT_TRUE(device.sends.empty());
  queue.add(IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 1);
  ASSERT_TRUE(queue.commit_alone());
  ASSERT_EQ(device.sends.size(), 1u);
  ASSERT_EQ(device.sends[0].size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ((device.sends[0][i].send_flags & IBV_SEND_SIGNALED) != 0, i == 3);
  }
  EXPECT_FALSE(queue.alone_is_done());
  device.complete_sends();
  ASSERT_TRUE(queue.reap());
  EXPECT_TRUE(queue.alone_is_done());
  EXPECT_EQ(queue.done(), 3u);
  EXPECT_EQ(queue.outstanding(), 3u);
  ASSERT_TRUE(post_one(queue, 3));
  EXPECT_FALSE(queue.has_room());
  ASSERT_TRUE(queue.flush());
  EXPECT_EQ(queue.done(), 3u);
  EXPECT_TRUE(queue.is_silent()) << "one of an interval of four";
  ASSERT_TRUE(queue.ask(0, 0));
  EXPECT_FALSE(queue.is_silent());
  device.complete_sends();
  ASSERT_TRUE(queue.reap());
  for (uint64_t token = 0; token < 4; ++token) EXPECT_EQ(queue.take().token, token);
  EXPECT_EQ(queue.outstanding(), 0u);
}

TEST(OperationQueueTest, TheFirstErrorIsKept) {
  FakeQueue device;
  OperationQueue queue(device.queue_pair(), device.completions(), {.pending = 4});
  ASSERT_TRUE(post_one(queue, 1));
  device.arrivals = {FakeQueue::completion(1, IBV_WC_REM_ACCESS_ERR),
                     FakeQueue::completion(2, IBV_WC_WR_FLUSH_ERR)};
  EXPECT_FALSE(queue.reap());
  EXPECT_EQ(queue.error().completion, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(queue.done(), 0u);
  device.post_result = ENOMEM;
  EXPECT_FALSE(post_one(queue, 2));
  EXPECT_EQ(queue.error().completion, IBV_WC_REM_ACCESS_ERR);
}

TEST(OperationQueueTest, ARefusedPostIsAnError) {
  FakeQueue device;
  OperationQueue queue(device.queue_pair(), device.completions(), {.pending = 4});
  device.post_result = ENOMEM;
  EXPECT_FALSE(post_one(queue, 1));
  EXPECT_EQ(queue.error().kind, channel::ChannelError::Kind::kPost);
  EXPECT_EQ(queue.error().error, ENOMEM);
}

}  // namespace
}  // namespace verbena::remote
