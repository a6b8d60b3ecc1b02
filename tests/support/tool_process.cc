#include "tests/support/tool_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "src/base/runtime.h"

namespace verbena::test {

void pause_between_looks() { sleep_ns(5'000'000); }

ScratchDirectory::ScratchDirectory() {
  std::string name = (std::filesystem::temp_directory_path() / "verbena-test-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) {
    ADD_FAILURE() << "cannot make " << name;
    std::abort();
  }
  path_ = name;
}

ScratchDirectory::~ScratchDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

namespace {

// Without the profiles that the user has made, which no test expects.
std::map<std::string, std::string> without_profiles(std::map<std::string, std::string> environment,
                                                    const std::string& empty_folder) {
  environment.emplace("XDG_DATA_HOME", empty_folder);
  return environment;
}

}  // namespace

ToolProcess::ToolProcess(const std::vector<std::string>& arguments,
                         const std::map<std::string, std::string>& environment,
                         const std::string& directory)
    : process_(arguments, {.environment = without_profiles(environment, scratch_.path()),
                           .directory = directory,
                           .files = {{STDIN_FILENO, "/dev/null", O_RDONLY},
                                     {STDOUT_FILENO, scratch_.file("out")},
                                     {STDERR_FILENO, scratch_.file("err")}}}) {}

std::string ToolProcess::out() const { return read_file(scratch_.file("out")); }
std::string ToolProcess::err() const { return read_file(scratch_.file("err")); }

Outcome ToolProcess::wait() {
  const int exit_code = process_.wait();
  return {exit_code, out(), err()};
}

std::vector<pid_t> ToolProcess::children() const {
  const std::string pid = std::to_string(process_.pid());
  std::istringstream numbers(read_file("/proc/" + pid + "/task/" + pid + "/children"));
  std::vector<pid_t> found;
  for (pid_t child = 0; numbers >> child;) found.push_back(child);
  return found;
}

bool is_alive(pid_t pid) {
  // "pid (name) state ...", and a name can have blanks.
  const std::string status = read_file("/proc/" + std::to_string(pid) + "/stat");
  const size_t name_end = status.rfind(')');
  return name_end != std::string::npos && name_end + 2 < status.size() &&
         status[name_end + 2] != 'Z' && status[name_end + 2] != 'X';
}

}  // namespace verbena::test
