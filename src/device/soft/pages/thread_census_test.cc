#include "src/device/soft/pages/thread_census.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <string>

#include "src/base/sanitizer.h"
#include "src/device/soft/pages/page_share_for_test.h"

namespace verbena::soft {
namespace {

// ThreadSanitizer has a thread of its own, which is listed, too.
#define SKIP_UNDER_THREAD_SANITIZER() \
  if (VERBENA_THREAD_SANITIZER) GTEST_SKIP() << "ThreadSanitizer's thread is listed, too"

TEST(ThreadCensusTest, ListsThreadsThatRun) {
  SKIP_UNDER_THREAD_SANITIZER();
  run_alone([] {
    const size_t before = threads_of_process().size();
    std::atomic<bool> runs{false};
    std::atomic<bool> stop{false};
    Thread thread = start_thread("other", [&] {
      runs.store(true);
      wait_until([&] { return stop.load(); });
    });
    wait_until([&] { return runs.load(); });
    EXPECT_EQ(threads_of_process().size(), before + 1);
    stop.store(true);
    thread.join();
    EXPECT_EQ(threads_of_process().size(), before);
  });
}

// /proc lists a thread for some microseconds after its join has returned.
TEST(ThreadCensusTest, ThreadsThatWereJoinedAreGone) {
  SKIP_UNDER_THREAD_SANITIZER();
  run_alone([] {
    const size_t before = threads_of_process().size();
    for (int i = 0; i < 3000; ++i) {
      start_thread("brief", [] {}).join();
      ASSERT_EQ(threads_of_process().size(), before) << "thread " << i;
    }
  });
}

// A main thread that ends stays listed for as long as others run.
TEST(ThreadCensusTest, AMainThreadThatEndedIsGone) {
  SKIP_UNDER_THREAD_SANITIZER();
  run_alone([] {
    const size_t before = threads_of_process().size();
    const pid_t main_thread = this_thread();
    Thread last = start_thread("last", [&] {
      wait_until([&] {
        std::ifstream file(fmt::format("/proc/self/task/{}/stat", main_thread));
        std::string line;
        std::getline(file, line);
        return line.find(") Z ") != std::string::npos;
      });
      EXPECT_EQ(threads_of_process().size(), before);
      _exit(testing::Test::HasFailure() ? 1 : 0);
    });
    syscall(SYS_exit, 0);
  });
}

}  // namespace
}  // namespace verbena::soft
