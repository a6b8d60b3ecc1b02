#include "tests/support/child_process.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

#include "src/base/file_descriptor.h"

namespace verbena::test {

namespace {

// Some examples measure for a while, and sanitizers make everything slower.
constexpr int kPatienceMs = 720'000;

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& arguments, const SpawnOptions& options) {
  const Result<pid_t> started = spawn(arguments, options);
  EXPECT_TRUE(started.ok()) << started.status().message();
  if (started.ok()) pid_ = *started;
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), exit_code_(other.exit_code_) {}

ChildProcess::~ChildProcess() {
  signal(SIGKILL);
  wait();
}

void ChildProcess::signal(int number) const {
  if (pid_ > 0) kill(pid_, number);
}

bool ChildProcess::ends_within(int timeout_ms) const {
  const FileDescriptor descriptor(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  pollfd end{.fd = descriptor.get(), .events = POLLIN, .revents = 0};
  return poll(&end, 1, timeout_ms) == 1;
}

bool ChildProcess::is_running() const { return pid_ > 0 && !ends_within(0); }

int ChildProcess::wait() {
  if (pid_ < 0) return exit_code_;
  if (!ends_within(kPatienceMs)) {
    ADD_FAILURE() << "process " << pid_ << " does not end";
    signal(SIGKILL);
  }
  const Result<int> ended = wait_for_exit(std::exchange(pid_, -1));
  if (ended.ok()) exit_code_ = *ended;
  return exit_code_;
}

}  // namespace verbena::test
