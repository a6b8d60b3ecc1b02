#include "src/cli/subprocess.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace verbena::cli {

Result<int> run_and_wait(const std::vector<std::string>& arguments,
                         const std::map<std::string, std::string>& environment) {
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
  pid_t process = -1;
  const int error = posix_spawnp(&process, arguments[0].c_str(), nullptr, nullptr,
                                 pointers(arguments).data(), pointers(variables).data());
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
