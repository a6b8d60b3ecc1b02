#include "src/bench/explain/helper_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "src/base/spawn.h"

namespace verbena::bench {

Result<Pipe> make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return Status(StatusCode::kLimitExceeded,
                  fmt::format("cannot make a pipe: {}; raise the limit of open files (ulimit -n)",
                              std::strerror(errno)));
  }
  return Pipe{FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

Result<pid_t> spawn_program(const std::vector<std::string>& arguments,
                            const std::vector<std::pair<int, int>>& descriptors) {
  Result<pid_t> process =
      spawn(arguments, {.descriptors = descriptors, .files = {{STDERR_FILENO, "/dev/null"}}});
  if (process.ok()) return process;
  return Status(StatusCode::kUnsupported,
                fmt::format("{}; install it or leave --profile out", process.status().message()));
}

Result<std::string> output_of(const std::vector<std::string>& arguments) {
  VERBENA_ASSIGN_OR_RETURN(Pipe pipe, make_pipe());
  VERBENA_ASSIGN_OR_RETURN(const pid_t process,
                           spawn_program(arguments, {{pipe.write.get(), STDOUT_FILENO}}));
  pipe.write.reset();
  std::string text;
  char part[4096];
  for (ssize_t count = 0; (count = read(pipe.read.get(), part, sizeof(part))) != 0;) {
    if (count < 0 && errno != EINTR) break;
    if (count > 0) text.append(part, static_cast<size_t>(count));
  }
  const Result<int> exit_code = wait_for_exit(process);
  if (!exit_code.ok() || *exit_code != 0) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("{} {} failed", arguments[0], arguments[1]));
  }
  return text;
}

TemporaryFolder::TemporaryFolder() {
  std::error_code error;
  path_ = std::filesystem::temp_directory_path(error) / "verbena-profile-XXXXXX";
  if (!error && mkdtemp(path_.data()) == nullptr) error.assign(errno, std::generic_category());
  if (!error) return;
  path_.clear();
  status_ = {StatusCode::kUnavailable,
             fmt::format("cannot make a temporary directory: {}; let TMPDIR name one that you may "
                         "write to",
                         error.message())};
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code unimportant;
  if (!path_.empty()) std::filesystem::remove_all(path_, unimportant);
}

}  // namespace verbena::bench
