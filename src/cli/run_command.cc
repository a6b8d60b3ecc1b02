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

}  // namespace

int fail_command(int exit_code, const std::string& message) {
  print_error_output("verbena: error: {}\n", message);
  return exit_code;
}

Result<std::string> find_library(const char* file) {
  std::error_code error;
  const std::filesystem::path executable = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) {
    return Status(
        StatusCode::kInternal,
        fmt::format("cannot read /proc/self/exe: {}; is /proc mounted?", error.message()));
  }
  const std::filesystem::path library =
      executable.parent_path().parent_path() / "lib" / "verbena" / file;
  if (access(library.c_str(), R_OK) != 0) {
    return Status(
        StatusCode::kNotFound,
        fmt::format("cannot read {}: {}; build the target `product`, or install verbena again",
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

Status set_environment(const char* name, const std::string& value) {
  if (setenv(name, value.c_str(), 1) == 0) return {};
  return Status(StatusCode::kInternal,
                fmt::format("cannot set {}: {}", name, std::strerror(errno)));
}

int run_program(const std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments[0].empty()) {
    return fail_command(kExitUsage,
                        "run: no program given; usage: verbena run [OPTIONS] -- PROGRAM [ARGS...]");
  }
  const Result<std::string> library = find_library("libverbena-verbs.so");
  if (!library.ok()) return fail_command(kExitFailure, library.status().message());
  const char* present = std::getenv(kPreload);
  const Result<std::string> preload =
      append_preload(present != nullptr ? present : "", library.value());
  if (!preload.ok()) return fail_command(kExitFailure, preload.status().message());
  if (const Status set = set_environment(kPreload, *preload); !set.ok())
    return fail_command(kExitFailure, set.message());
  return replace_process(arguments);
}

int replace_process(const std::vector<std::string>& arguments) {
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());

  const int error = errno;
  if (error == ENOENT || error == ENOTDIR) {
    return fail_command(
        kExitNotFound,
        fmt::format("cannot run '{}': no such program; check its name and PATH", arguments[0]));
  }
  return fail_command(kExitNotExecutable,
                      fmt::format("cannot run '{}': {}", arguments[0], std::strerror(error)));
}

}  // namespace verbena::cli
