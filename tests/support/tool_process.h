// Runs the built `verbena` (or another program) as users do: as a process with arguments, whose
// output and exit code are looked at.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "tests/support/child_process.h"

namespace verbena::test {

// A directory of its own, removed with everything in it.
class ScratchDirectory {
 public:
  ScratchDirectory();
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

std::string read_file(const std::string& path);
void write_file(const std::string& path, const std::string& text);

struct Outcome {
  int exit_code = -1;  // 128 + signal if one killed it
  std::string out;
  std::string err;
};

class ToolProcess {
 public:
  // arguments[0] is searched for in PATH; the standard input is empty.
  explicit ToolProcess(const std::vector<std::string>& arguments,
                       const std::map<std::string, std::string>& environment = {},
                       const std::string& directory = "");

  pid_t pid() const { return process_.pid(); }
  void signal(int number) const { process_.signal(number); }
  bool is_running() const { return process_.is_running(); }
  // What it printed so far.
  std::string out() const;
  std::string err() const;
  // Its end, as ChildProcess::wait().
  Outcome wait();
  // The processes that it started.
  std::vector<pid_t> children() const;

 private:
  ScratchDirectory scratch_;
  ChildProcess process_;
};

// Looks every few milliseconds until it is true; false after a generous time.
void pause_between_looks();

template <typename Condition>
bool eventually(Condition&& condition) {
  constexpr int kLooks = 36'000;  // three minutes
  for (int look = 0; look < kLooks; ++look) {
    if (condition()) return true;
    pause_between_looks();
  }
  return false;
}

// Whether a process exists and is no zombie.
bool is_alive(pid_t pid);

}  // namespace verbena::test
