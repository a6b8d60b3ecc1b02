#include "src/cli/run_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "src/base/output.h"
#include "src/cli/tool.h"

namespace verbena::cli {

namespace {

constexpr const char* kPreload = "LD_PRELOAD";

// As shells do.
constexpr int kExitNotExecutable = 126;
constexpr int kExitNotFound = 127;

int fail(int exit_code, const std::string& message) {
  print_error_output("verbena: error: {}\n", message);
  return exit_code;
}

}  // namespace

Result<std::string> find_interposer() {
  std::error_code error;
  const std::filesystem::path executable = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) {
    return Status(
        StatusCode::kInternal,
        fmt::format("cannot read /proc/self/exe: {}; is /proc mounted?", error.message()));
  }
  const std::filesystem::path library =
      executable.parent_path().parent_path() / "lib" / "verbena" / "libverbena-verbs.so";
  if (access(library.c_str(), R_OK) != 0) {
    return Status(StatusCode::kNotFound,
                  fmt::format("cannot read {}: {}; build the target verbena_interpose or install "
                              "verbena again",
                              library.string(), std::strerror(errno)));
  }
  return library.string();
}

Result<std::string> append_preload(const std::string& preload, const std::string& library) {
  // The dynamic linker splits the variable there and knows no quoting.
  if (library.find_first_of(" :\t") != std::string::npos) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("LD_PRELOAD cannot name '{}': the path has a space or a colon; install "
                    "verbena elsewhere",
                    library));
  }
  return preload.empty() ? library : preload + ":" + library;
}

int run_program(const std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments[0].empty()) {
    return fail(kExitUsage, "run: no program given; usage: verbena run -- PROGRAM [ARGS...]");
  }
  const Result<std::string> library = find_interposer();
  if (!library.ok()) return fail(kExitFailure, library.status().message());
  const char* present = std::getenv(kPreload);
  const Result<std::string> preload =
      append_preload(present != nullptr ? present : "", library.value());
  if (!preload.ok()) return fail(kExitFailure, preload.status().message());
  if (setenv(kPreload, preload->c_str(), 1) != 0) {
    return fail(kExitFailure, fmt::format("cannot set {}: {}", kPreload, std::strerror(errno)));
  }

  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());

  const int error = errno;
  if (error == ENOENT || error == ENOTDIR) {
    return fail(
        kExitNotFound,
        fmt::format("cannot run '{}': no such program; check its name and PATH", arguments[0]));
  }
  return fail(kExitNotExecutable,
              fmt::format("cannot run '{}': {}", arguments[0], std::strerror(error)));
}

}  // namespace verbena::cli
