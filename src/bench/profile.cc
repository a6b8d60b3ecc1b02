#include "src/bench/profile.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

#include "src/base/file_descriptor.h"
#include "src/base/instruction_count.h"

extern char** environ;

namespace verbena::bench {

namespace {

constexpr int kFrequencyHz = 1999;
constexpr int kAnswerTimeoutMs = 30'000;
constexpr size_t kMostFunctions = 12;
constexpr double kLeastShare = 0.005;

const char* event_name() { return InstructionCounter::available() ? "cycles" : "cpu-clock"; }

struct Pipe {
  FileDescriptor read;
  FileDescriptor write;
};

Result<Pipe> make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return Status(StatusCode::kLimitExceeded,
                  fmt::format("cannot make a pipe: {}; raise the limit of open files (ulimit -n)",
                              std::strerror(errno)));
  }
  return Pipe{FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

// A process with some descriptors under given numbers.
Result<pid_t> spawn(std::vector<std::string> arguments,
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
                  fmt::format("cannot run {}: {}; install it (package linux-perf, on Ubuntu "
                              "linux-tools-generic) or leave --profile out",
                              arguments[0], std::strerror(error)));
  }
  return process;
}

int wait_for(pid_t process) {
  int wait_status = 0;
  while (waitpid(process, &wait_status, 0) < 0 && errno == EINTR) {
  }
  return wait_status;
}

// The standard output of a program.
Result<std::string> output_of(const std::vector<std::string>& arguments) {
  VERBENA_ASSIGN_OR_RETURN(Pipe pipe, make_pipe());
  VERBENA_ASSIGN_OR_RETURN(const pid_t process,
                           spawn(arguments, {{pipe.write.get(), STDOUT_FILENO}}));
  pipe.write.reset();
  std::string text;
  char part[4096];
  for (ssize_t count = 0; (count = read(pipe.read.get(), part, sizeof(part))) != 0;) {
    if (count < 0 && errno != EINTR) break;
    if (count > 0) text.append(part, static_cast<size_t>(count));
  }
  const int wait_status = wait_for(process);
  if (!WIFEXITED(wait_status) || WEXITSTATUS(wait_status) != 0) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("{} {} failed", arguments[0], arguments[1]));
  }
  return text;
}

// perf while it records. It starts disabled, since attaching to the threads takes a while.
class Recorder {
 public:
  explicit Recorder(std::string file) : file_(std::move(file)) {}
  ~Recorder() { stop(); }

  Status start(const std::vector<pid_t>& processes) {
    // Where perf finds them; numbers that nothing else here has.
    constexpr int kControl = 198;
    constexpr int kAnswer = 199;
    VERBENA_ASSIGN_OR_RETURN(control_, make_pipe());
    VERBENA_ASSIGN_OR_RETURN(answer_, make_pipe());
    VERBENA_ASSIGN_OR_RETURN(
        process_, spawn({"perf", "record", "-q", "-e", fmt::format("{}:u", event_name()), "-F",
                         fmt::format("{}", kFrequencyHz), "-D", "-1",
                         fmt::format("--control=fd:{},{}", kControl, kAnswer), "-o", file_, "-p",
                         fmt::format("{}", fmt::join(processes, ","))},
                        {{control_.read.get(), kControl}, {answer_.write.get(), kAnswer}}));
    // So that the pipes end with perf.
    control_.read.reset();
    answer_.write.reset();
    return tell("enable\n");
  }

  void stop() {
    if (process_ <= 0) return;
    static_cast<void>(tell("disable\n"));
    kill(process_, SIGINT);  // writes the file
    wait_for(process_);
    process_ = 0;
  }

 private:
  Status tell(std::string_view command) const {
    char answer[16];
    pollfd source{answer_.read.get(), POLLIN, 0};
    if (write(control_.write.get(), command.data(), command.size()) > 0 &&
        poll(&source, 1, kAnswerTimeoutMs) > 0 &&
        read(answer_.read.get(), answer, sizeof(answer)) > 0) {
      return Status::ok_status();
    }
    return Status(StatusCode::kUnsupported,
                  "perf does not sample the nodes; allow it (kernel.perf_event_paranoid 2 or less) "
                  "or leave --profile out");
  }

  std::string file_;
  Pipe control_;
  Pipe answer_;
  pid_t process_ = 0;
};

class TemporaryFolder {
 public:
  TemporaryFolder() : path_(std::filesystem::temp_directory_path() / "verbena-profile-XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) path_.clear();
  }
  ~TemporaryFolder() {
    std::error_code unimportant;
    if (!path_.empty()) std::filesystem::remove_all(path_, unimportant);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string file(const char* name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

std::vector<FunctionShare> largest(const std::map<std::string, double>& percents) {
  double sum = 0;
  for (const auto& [function, percent] : percents) sum += percent;
  std::vector<FunctionShare> shares;
  for (const auto& [function, percent] : percents) {
    if (percent / sum >= kLeastShare) shares.push_back({function, percent / sum});
  }
  std::sort(shares.begin(), shares.end(),
            [](const FunctionShare& a, const FunctionShare& b) { return a.share > b.share; });
  if (shares.size() > kMostFunctions) shares.resize(kMostFunctions);
  return shares;
}

}  // namespace

std::string short_function_name(std::string_view symbol) {
  std::string name;
  int depth = 0;
  for (size_t i = 0; i < symbol.size(); ++i) {
    const char letter = symbol[i];
    if (letter == '<') ++depth;
    if (depth == 0 && letter == '(' && !symbol.substr(i).starts_with("(anonymous namespace)")) {
      // The call operator of a function object has a pair of parentheses in its name.
      if (!name.ends_with("operator")) break;
      name += "()";
      break;
    }
    if (depth == 0) name += letter;
    if (letter == '>' && depth > 0) --depth;
  }
  return name;
}

Profile parse_profile(std::string_view report) {
  Profile profile;
  std::map<std::string, double> requester;
  std::map<std::string, double> responder;
  while (!report.empty()) {
    const size_t end = std::min(report.find('\n'), report.size());
    std::string_view line = report.substr(0, end);
    report.remove_prefix(std::min(end + 1, report.size()));
    // "  12.34%;respond-0;[.] function"
    line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
    double percent = 0;
    const auto number = std::from_chars(line.data(), line.data() + line.size(), percent);
    const size_t first = line.find(';');
    const size_t second = line.find(';', first + 1);
    if (number.ec != std::errc() || second == std::string_view::npos) continue;
    const std::string_view thread = line.substr(first + 1, second - first - 1);
    std::string_view symbol = line.substr(second + 1);
    if (symbol.size() > 4 && symbol.front() == '[') symbol.remove_prefix(4);  // "[.] "
    const std::string function = short_function_name(symbol);
    if (thread.find("request-") != std::string_view::npos) requester[function] += percent;
    if (thread.find("respond-") != std::string_view::npos) responder[function] += percent;
  }
  profile.requester = largest(requester);
  profile.responder = largest(responder);
  return profile;
}

Status check_profiler() {
  const Result<std::string> tried =
      output_of({"perf", "stat", "-e", fmt::format("{}:u", event_name()), "-x", ",", "true"});
  if (tried.ok()) return Status::ok_status();
  return Status(
      StatusCode::kUnsupported,
      "--profile needs perf, which does not work here; install it (package linux-perf, on "
      "Ubuntu linux-tools-generic) and allow it (kernel.perf_event_paranoid 2 or less)");
}

Result<Profile> profile_point(NodePool& pool, const Point& point, const RunOptions& options) {
  const TemporaryFolder folder;
  Recorder recorder(folder.file("perf.data"));
  RunOptions watched = options;
  watched.before_timed = [&](const std::vector<pid_t>& processes) {
    return recorder.start(processes);
  };
  watched.after_timed = [&] { recorder.stop(); };
  RunFailure failure;
  VERBENA_RETURN_IF_ERROR(run_point(pool, point, watched, 0, &failure).status());
  VERBENA_ASSIGN_OR_RETURN(
      const std::string report,
      output_of({"perf", "report", "-i", folder.file("perf.data"), "--stdio", "--no-children", "-F",
                 "overhead,comm,sym", "-t", ";", "-q"}));
  Profile profile = parse_profile(report);
  profile.event = event_name();
  return profile;
}

}  // namespace verbena::bench
