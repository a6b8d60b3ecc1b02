#include "src/bench/explain/helper_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

extern char** environ;

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

Result<pid_t> spawn_program(std::vector<std::string> arguments,
                            const std::vector<std::pair<int, int>>& descriptors) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (const auto& [from, to] : descriptors) posix_spawn_file_actions_adddup2(&actions, from, to);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_t process = -1;
  const int error = posix_spawnp(&process, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("cannot run {}: {}; install it or leave --profile out", arguments[0],
                              std::strerror(error)));
  }
  return process;
}

int wait_for_end(pid_t process) {
  int wait_status = 0;
  while (waitpid(process, &wait_status, 0) < 0 && errno == EINTR) {
  }
  return wait_status;
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
  const int wait_status = wait_for_end(process);
  if (!WIFEXITED(wait_status) || WEXITSTATUS(wait_status) != 0) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("{} {} failed", arguments[0], arguments[1]));
  }
  return text;
}

TemporaryFolder::TemporaryFolder()
    : path_(std::filesystem::temp_directory_path() / "verbena-profile-XXXXXX") {
  if (mkdtemp(path_.data()) == nullptr) path_.clear();
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code unimportant;
  if (!path_.empty()) std::filesystem::remove_all(path_, unimportant);
}

}  // namespace verbena::bench
