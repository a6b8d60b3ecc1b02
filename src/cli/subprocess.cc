#include "src/cli/subprocess.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace verbena::cli {

Result<int> run_and_wait(const std::vector<std::string>& arguments,
                         const std::map<std::string, std::string>& environment,
                         const OutputFiles& output) {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    if (!environment.contains(text.substr(0, text.find('=')))) variables.push_back(text);
  }
  for (const auto& [name, value] : environment) {
    variables.push_back(fmt::format("{}={}", name, value));
  }

  const auto pointers = [](const std::vector<std::string>& texts) {
    std::vector<char*> list;
    list.reserve(texts.size() + 1);
    for (const std::string& text : texts) list.push_back(const_cast<char*>(text.c_str()));
    list.push_back(nullptr);
    return list;
  };
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  const auto redirect = [&](int descriptor, const std::string& path) {
    if (path.empty()) return;
    posix_spawn_file_actions_addopen(&files, descriptor, path.c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                     0600);
  };
  redirect(STDOUT_FILENO, output.standard);
  redirect(STDERR_FILENO, output.error);
  pid_t process = -1;
  const int error = posix_spawnp(&process, arguments[0].c_str(), &files, nullptr,
                                 pointers(arguments).data(), pointers(variables).data());
  posix_spawn_file_actions_destroy(&files);
  if (error != 0) {
    return Status(error == ENOENT ? StatusCode::kNotFound : StatusCode::kUnavailable,
                  fmt::format("cannot run '{}': {}", arguments[0], std::strerror(error)));
  }
  int wait_status = 0;
  while (waitpid(process, &wait_status, 0) < 0) {
    if (errno != EINTR) {
      return Status(StatusCode::kInternal,
                    fmt::format("cannot wait for '{}': {}", arguments[0], std::strerror(errno)));
    }
  }
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

}  // namespace verbena::cli
