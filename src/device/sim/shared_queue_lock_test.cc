// Queue pairs and completion queues that several threads use.
#include "src/device/sim/shared_queue_lock.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "src/device/sim/cluster_for_test.h"

namespace verbena::sim {
namespace {

class SharedQueueLockTest : public testing::Test {
 protected:
  static constexpr uint32_t kPosts = 32;

  static Profile profile(uint64_t lines) {
    Profile profile = must(load_profile("connectx6-hdr"));
    profile.jitter_percent = 0;
    profile.shared_queue_lines = lines;
    return profile;
  }

  // How long so many threads take to post kPosts WRITEs each, and to poll for all of them, on as
  // many queue pairs.
  static uint64_t took_ns(uint64_t lines, uint32_t threads, uint32_t queue_pairs) {
    const Profile used = profile(lines);
    Cluster cluster(2, /*seed=*/1, used);
    Buffer here(cluster[0], 64);
    Buffer there(cluster[1], 64);
    std::vector<std::unique_ptr<End>> near;
    std::vector<std::unique_ptr<End>> far;
    const EndOptions options{.send_depth = threads * kPosts};
    for (uint32_t i = 0; i < queue_pairs; ++i) {
      near.push_back(std::make_unique<End>(cluster[0], options));
      far.push_back(std::make_unique<End>(cluster[1]));
      connect(*near.back(), *far.back());
    }
    std::vector<uint32_t> left(threads, kPosts);
    uint64_t longest = 0;
    std::vector<Thread> running;
    for (uint32_t thread = 0; thread < threads; ++thread) {
      running.push_back(cluster.start(0, [&, thread, end = near[thread % queue_pairs].get()] {
        const uint64_t begin_ns = now_ns();
        post_and_poll(*end, IBV_WR_RDMA_WRITE, here, there, kPosts, 4, thread, left);
        longest = std::max(longest, now_ns() - begin_ns);
      }));
    }
    for (Thread& thread : running) thread.join();
    EXPECT_EQ(std::count(left.begin(), left.end(), 0u), threads);
    return longest;
  }
};

TEST_F(SharedQueueLockTest, OneThreadPaysNothing) {
  EXPECT_EQ(took_ns(10, 1, 1), took_ns(0, 1, 1));
  EXPECT_EQ(took_ns(10, 3, 3), took_ns(0, 3, 3));
}

TEST_F(SharedQueueLockTest, ThreadsOfOneQueuePairWaitForEachOtherAndItsLines) {
  const Profile with = profile(10);
  const uint64_t few_ns = took_ns(1, 4, 1);
  const uint64_t many_ns = took_ns(10, 4, 1);
  // Each post takes over the lock with its lines from another thread.
  const uint64_t lines_ns = uint64_t{4} * kPosts * 9 * with.cpu_line_transfer / kPsPerNs;
  EXPECT_GT(many_ns, few_ns + lines_ns * 8 / 10);
  EXPECT_GT(few_ns, 2 * took_ns(1, 4, 4));
}

// Who has the lock may have lost its core to others that spin for it.
TEST_F(SharedQueueLockTest, ThreadsThatShareCoresGoOn) {
  constexpr uint32_t kThreads = 4;
  for (const uint64_t cores : {1, 2}) {
    Profile shared = profile(4);
    shared.shared_host = 1;
    shared.sockets = 1;
    shared.cores = cores;
    shared.cpu_switch = 500 * kPsPerNs;
    shared.cpu_slice = 2'000 * kPsPerNs;
    Cluster cluster(2, /*seed=*/1, shared);
    Buffer here(cluster[0], 64);
    Buffer there(cluster[1], 64);
    End near(cluster[0], {.send_depth = kThreads * kPosts});
    End far(cluster[1]);
    connect(near, far);
    std::vector<uint32_t> left(kThreads, kPosts);
    std::vector<Thread> running;
    for (uint32_t thread = 0; thread < kThreads; ++thread) {
      running.push_back(cluster.start(0, [&, thread] {
        post_and_poll(near, IBV_WR_RDMA_WRITE, here, there, kPosts, 4, thread, left);
      }));
    }
    for (Thread& thread : running) thread.join();
    EXPECT_EQ(std::count(left.begin(), left.end(), 0u), kThreads) << cores << " cores";
  }
}

TEST_F(SharedQueueLockTest, WithoutLinesThereAreNoLocks) {
  EXPECT_LT(took_ns(0, 4, 1), took_ns(1, 4, 1));
}

}  // namespace
}  // namespace verbena::sim
