#include "tests/support/tool_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
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

ToolProcess::ToolProcess(const std::vector<std::string>& arguments,
                         const std::map<std::string, std::string>& environment,
                         const std::string& directory) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_ = fork();
  if (pid_ == 0) {
    const int in = open("/dev/null", O_RDONLY);
    const int out = open(scratch_.file("out").c_str(), O_WRONLY | O_CREAT, 0600);
    const int err = open(scratch_.file("err").c_str(), O_WRONLY | O_CREAT, 0600);
    dup2(in, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    if (!directory.empty() && chdir(directory.c_str()) != 0) _exit(126);
    execvp(argv[0], argv.data());
    _exit(127);
  }
}

ToolProcess::~ToolProcess() {
  if (waited_ || pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void ToolProcess::signal(int number) const { kill(pid_, number); }

std::string ToolProcess::out() const { return read_file(scratch_.file("out")); }
std::string ToolProcess::err() const { return read_file(scratch_.file("err")); }

bool ToolProcess::ended(int* wait_status) const {
  return waitpid(pid_, wait_status, WNOHANG) == pid_;
}

Outcome ToolProcess::wait() {
  bool finished = false;
  // Some examples measure for a while, and sanitizers make everything slower.
  for (int waits = 0; waits < 4 && !finished; ++waits) {
    finished = eventually([this] { return ended(&wait_status_); });
  }
  if (!finished) {
    ADD_FAILURE() << "the process did not end; it printed\n" << out() << err();
    return {};
  }
  waited_ = true;
  const int exit_code =
      WIFSIGNALED(wait_status_) ? 128 + WTERMSIG(wait_status_) : WEXITSTATUS(wait_status_);
  return {exit_code, out(), err()};
}

std::vector<pid_t> ToolProcess::children() const {
  const std::string pid = std::to_string(pid_);
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
