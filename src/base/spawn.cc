#include "src/base/spawn.h"

#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace verbena {

namespace {

// As exec() takes it; valid as long as `texts`.
std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> variables_with(const std::map<std::string, std::string>& further) {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    if (!further.contains(text.substr(0, text.find('=')))) variables.push_back(text);
  }
  for (const auto& [name, value] : further) variables.push_back(fmt::format("{}={}", name, value));
  return variables;
}

// What the process was started with. The library's threads block all signals (runtime.h), which
// programs that they start must not inherit: nothing would end those but SIGKILL.
const sigset_t& signals_blocked_at_start() {
  static const sigset_t blocked = [] {
    sigset_t now;
    pthread_sigmask(SIG_SETMASK, nullptr, &now);
    return now;
  }();
  return blocked;
}
[[maybe_unused]] const bool signals_asked = (signals_blocked_at_start(), true);

}  // namespace

Result<pid_t> spawn(const std::vector<std::string>& arguments, const SpawnOptions& options) {
  const std::string& program = options.file.empty() ? arguments.at(0) : options.file;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (const auto& [descriptor, number] : options.descriptors) {
    posix_spawn_file_actions_adddup2(&actions, descriptor, number);
  }
  for (const SpawnOptions::File& file : options.files) {
    posix_spawn_file_actions_addopen(&actions, file.descriptor, file.path.c_str(), file.flags,
                                     0600);
  }
  if (!options.directory.empty()) {
    posix_spawn_file_actions_addchdir_np(&actions, options.directory.c_str());
  }
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  posix_spawnattr_setsigmask(&attributes, &signals_blocked_at_start());
  const std::vector<std::string> variables = variables_with(options.environment);
  pid_t process = -1;
  const int error = posix_spawnp(&process, program.c_str(), &actions, &attributes,
                                 pointers_to(arguments).data(), pointers_to(variables).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    return Status(error == ENOENT ? StatusCode::kNotFound : StatusCode::kUnavailable,
                  fmt::format("cannot run '{}': {}", program, std::strerror(error)));
  }
  return process;
}

Result<int> wait_for_exit(pid_t process) {
  int wait_status = 0;
  while (waitpid(process, &wait_status, 0) < 0) {
    if (errno != EINTR) {
      return Status(StatusCode::kInternal,
                    fmt::format("cannot wait for process {}: {}", process, std::strerror(errno)));
    }
  }
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

Result<int> run_and_wait(const std::vector<std::string>& arguments, const SpawnOptions& options) {
  VERBENA_ASSIGN_OR_RETURN(const pid_t process, spawn(arguments, options));
  return wait_for_exit(process);
}

}  // namespace verbena
