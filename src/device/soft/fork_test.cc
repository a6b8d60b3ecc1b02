// A child of fork() whose parent has other threads that were using the device.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "src/base/sanitizer.h"
#include "src/device/verbs_for_test.h"

namespace verbena::soft {
namespace {

using test::Buffer;
using test::Node;

// 0, or the line of the call that failed.
int use_control_calls(const Node& node) {
  const VerbsControl& control = node.control();
  ibv_context* const context = node.device.get();
  ibv_comp_channel* const channel = control.create_comp_channel(context);
  if (channel == nullptr) return __LINE__;
  ibv_cq* const queue = control.create_cq(context, 4, nullptr, channel, 0);
  if (queue == nullptr) return __LINE__;
  if (control.destroy_comp_channel(channel) == 0) return __LINE__;  // it is in use
  if (control.destroy_cq(queue) != 0) return __LINE__;
  if (control.destroy_comp_channel(channel) != 0) return __LINE__;
  ibv_pd* const domain = control.alloc_pd(context);
  if (domain == nullptr || control.dealloc_pd(domain) != 0) return __LINE__;
  return 0;
}

TEST(ForkTest, AChildOpensTheDeviceWhateverOtherThreadsWereAt) {
  if (VERBENA_THREAD_SANITIZER) GTEST_SKIP() << "ThreadSanitizer starts no threads after a fork()";
  if (VERBENA_ADDRESS_SANITIZER)
    GTEST_SKIP() << "a thread of the parent may hold the lock of AddressSanitizer's allocator";
  constexpr int kChildren = 40;
  constexpr unsigned kPatienceS = 120;
  const Node node;
  std::atomic<bool> ends{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      while (!ends.load()) EXPECT_EQ(use_control_calls(node), 0);
    });
  }
  int status = 0;
  for (int i = 0; i < kChildren && status == 0; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(kPatienceS);
      const Node own;
      _exit(use_control_calls(own) != 0 ? 1 : 0);
    }
    if (waitpid(child, &status, 0) != child) status = -1;
  }
  ends.store(true);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(status, 0) << (WIFSIGNALED(status) ? "it stood still" : "a call failed");
}

}  // namespace
}  // namespace verbena::soft
