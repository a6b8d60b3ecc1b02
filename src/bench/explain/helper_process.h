// Other programs that a benchmark starts: profilers.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "src/base/file_descriptor.h"
#include "verbena/status.h"

namespace verbena::bench {

struct Pipe {
  FileDescriptor read;
  FileDescriptor write;
};

// kLimitExceeded where there are too many open files.
Result<Pipe> make_pipe();

// Starts a program, found by PATH, with some descriptors (first) under given numbers (second) and
// without standard error. kUnsupported where it cannot be run.
Result<pid_t> spawn_program(const std::vector<std::string>& arguments,
                            const std::vector<std::pair<int, int>>& descriptors);

// The standard output of a program that succeeds, else kUnsupported.
Result<std::string> output_of(const std::vector<std::string>& arguments);

// A folder that goes with its owner, with all that is in it.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  // kUnavailable: it could not be made, and there is no file().
  const Status& status() const { return status_; }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string file(const char* name) const { return path_ + "/" + name; }

 private:
  std::string path_;
  Status status_;
};

}  // namespace verbena::bench
