#include "src/channel/send_queue.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <vector>

#include "src/channel/fake_queue_for_test.h"

namespace verbena::channel {
namespace {

constexpr SendQueueSizes kSizes = {.depth_wrs = 16, .signal_interval = 4, .post_batch = 1};

bool push(SendQueue& queue, ibv_send_wr& request) {
  request.send_flags = 0;
  return queue.push(request);
}

TEST(SendQueueTest, EveryNthRequestIsSignaled) {
  FakeQueue fake;
  SendQueue queue(fake.queue_pair(), fake.completions(), kSizes);
  ibv_send_wr request{};
  for (int i = 0; i < 12; ++i) ASSERT_TRUE(queue.has_room() && push(queue, request));
  ASSERT_EQ(fake.sends.size(), 12u) << "each posted at once";
  for (size_t i = 0; i < 12; ++i) {
    EXPECT_EQ((fake.sends[i][0].send_flags & IBV_SEND_SIGNALED) != 0, i % 4 == 3) << i;
  }
  EXPECT_EQ(fake.polls, 0u) << "completions are of no interest while there is room";
}

TEST(SendQueueTest, FullQueueWouldBlockUntilASignaledRequestCompletes) {
  FakeQueue fake;
  SendQueue queue(fake.queue_pair(), fake.completions(), kSizes);
  ibv_send_wr request{};
  for (int i = 0; i < 16; ++i) ASSERT_TRUE(queue.has_room() && push(queue, request));
  EXPECT_FALSE(queue.has_room());
  EXPECT_FALSE(queue.error()) << "would block is no error";
  fake.arrivals.push_back(FakeQueue::completion(fake.sends[3][0].wr_id));
  EXPECT_TRUE(queue.has_room());
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(queue.has_room() && push(queue, request));
  EXPECT_FALSE(queue.has_room()) << "one completion frees four entries, not more";
}

TEST(SendQueueTest, RunsForeverWithOnePollPerQueueFull) {
  FakeQueue fake;
  SendQueue queue(fake.queue_pair(), fake.completions(), kSizes);
  ibv_send_wr request{};
  constexpr uint32_t kMessages = 10000;
  for (uint32_t i = 0; i < kMessages; ++i) {
    ASSERT_TRUE(queue.has_room()) << i;
    ASSERT_TRUE(push(queue, request));
    fake.complete_sends();
  }
  EXPECT_LE(fake.polls, kMessages / kSizes.depth_wrs + 1);
}

TEST(SendQueueTest, BatchIsPostedAsOneListWhenFullOrFlushed) {
  FakeQueue fake;
  SendQueue queue(fake.queue_pair(), fake.completions(),
                  {.depth_wrs = 16, .signal_interval = 4, .post_batch = 3});
  std::vector<ibv_send_wr> requests(4);
  ASSERT_TRUE(push(queue, requests[0]));
  ASSERT_TRUE(push(queue, requests[1]));
  EXPECT_TRUE(fake.sends.empty());
  ASSERT_TRUE(push(queue, requests[2]));
  ASSERT_EQ(fake.sends.size(), 1u);
  EXPECT_EQ(fake.sends[0].size(), 3u);
  ASSERT_TRUE(push(queue, requests[3]));
  ASSERT_TRUE(queue.flush());
  ASSERT_EQ(fake.sends.size(), 2u);
  EXPECT_EQ(fake.sends[1].size(), 1u);
  EXPECT_NE(fake.sends[1][0].send_flags & IBV_SEND_SIGNALED, 0u) << "counted over all lists";
  ASSERT_TRUE(queue.flush());
  EXPECT_EQ(fake.sends.size(), 2u) << "nothing left to post";
}

TEST(SendQueueTest, FirstErrorIsTheOneToldAndStops) {
  FakeQueue fake;
  SendQueue queue(fake.queue_pair(), fake.completions(), kSizes);
  fake.arrivals.push_back(FakeQueue::completion(0, IBV_WC_RETRY_EXC_ERR));
  fake.arrivals.push_back(FakeQueue::completion(0, IBV_WC_WR_FLUSH_ERR));
  queue.reap();
  ASSERT_EQ(queue.error().kind, ChannelError::Kind::kCompletion);
  EXPECT_EQ(queue.error().completion, IBV_WC_RETRY_EXC_ERR);
}

TEST(SendQueueTest, RefusedPostIsAnError) {
  FakeQueue fake;
  SendQueue queue(fake.queue_pair(), fake.completions(), kSizes);
  fake.post_result = EINVAL;
  ibv_send_wr request{};
  EXPECT_FALSE(push(queue, request));
  EXPECT_EQ(queue.error().kind, ChannelError::Kind::kPost);
  EXPECT_EQ(queue.error().error, EINVAL);
}

}  // namespace
}  // namespace verbena::channel
