// Threads of two processes that share objects of soft0 and take them from each other
// (crowd.h). soft_lifecycle_test.cc knows every outcome, as it does one thing after another.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>

#include "src/base/runtime.h"
#include "tests/soft/process.h"
#include "tests/soft/verbs.h"
#include "tests/soft_lifecycle/crowd.h"

namespace verbena::soft_lifecycle {
namespace {

using soft_test::Child;

constexpr uint32_t kCrowdSteps = 1500;  // of a thread

Board* map_board(int fd) {
  void* const mapped = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) std::abort();
  return static_cast<Board*>(mapped);
}

// The memory that both processes tell each other in.
class SharedBoard {
 public:
  SharedBoard() : fd_(memfd_create("board", MFD_CLOEXEC)) {
    if (fd_ < 0 || ftruncate(fd_, sizeof(Board)) != 0) std::abort();
    board_ = new (map_board(fd_)) Board{};
  }
  SharedBoard(const SharedBoard&) = delete;
  SharedBoard& operator=(const SharedBoard&) = delete;
  ~SharedBoard() {
    munmap(board_, sizeof(Board));
    close(fd_);
  }
  Board& operator*() const { return *board_; }
  int fd() const { return fd_; }

 private:
  int fd_;
  Board* board_ = nullptr;
};

struct CrowdRole {
  pid_t pid;
  int fd;
  uint64_t seed;
};

VERBENA_TEST_CHILD(crowd) {
  const auto role = link.get<CrowdRole>();
  const std::string path = "/proc/" + std::to_string(role.pid) + "/fd/" + std::to_string(role.fd);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return 1;
  Board* const board = map_board(fd);
  close(fd);
  const std::string wrong = run_crowd(*board, 1, role.seed, kCrowdSteps);
  char text[512] = {};
  wrong.copy(text, sizeof(text) - 1);
  link.put_bytes(text, sizeof(text));
  return 0;
}

// `kill_at_step`: when the other process is killed, 0 for never.
void run_story(uint64_t seed, uint64_t kill_at_step) {
  const SharedBoard board;
  Child child("crowd");
  child.link().put(CrowdRole{getpid(), board.fd(), seed});
  std::atomic<bool> ended = false;
  std::string wrong;
  Thread here = start_thread("crowd", [&] {
    wrong = run_crowd(*board, 0, seed, kCrowdSteps);
    ended.store(true);
  });
  if (kill_at_step != 0) {
    for (Waiter waiter; !ended.load() && (*board).steps.load() < kill_at_step;) waiter.idle();
    child.kill();
  }
  here.join();
  EXPECT_EQ(wrong, "");
  if (kill_at_step != 0) return;
  char text[512] = {};
  child.link().get_bytes(text, sizeof(text));
  EXPECT_STREQ(text, "") << "in the other process";
  EXPECT_EQ(child.wait(), 0);
}

TEST(SoftCrowdTest, WhatHoldsInAnyOrderHolds) {
  Random random(run_seed());
  for (size_t i = 0; i < soft_test::iterations(12); ++i) {
    const uint64_t seed = random.next();
    const uint64_t kill_at_step =
        random.below(3) == 0 ? 1 + random.below(uint64_t{kSeats} * kCrowdSteps) : 0;
    SCOPED_TRACE(testing::Message() << "VERBENA_SEED=" << run_seed() << ", story " << i);
    run_story(seed, kill_at_step);
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace verbena::soft_lifecycle
