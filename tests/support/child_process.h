// A process that a test started: killed and reaped with its owner.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "src/base/spawn.h"

namespace verbena::test {

class ChildProcess {
 public:
  // The test fails where the program cannot be run; wait() is 127 then.
  explicit ChildProcess(const std::vector<std::string>& arguments,
                        const SpawnOptions& options = {});
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess();

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  bool is_running() const;
  // Its exit code, or 128 + N after signal N. A process that does not end in a generous time is
  // killed, and the test fails.
  int wait();

 private:
  bool ends_within(int timeout_ms) const;

  pid_t pid_ = -1;  // of no process once that is reaped
  int exit_code_ = 127;
};

}  // namespace verbena::test
