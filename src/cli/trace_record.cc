// `verbena trace -o FOLDER -- mpiexec ...`: the program with the tracer loaded, and what came of
// it.
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "src/base/file_descriptor.h"
#include "src/base/output.h"
#include "src/base/spawn.h"
#include "src/cli/commands.h"
#include "src/cli/run_command.h"
#include "src/cli/tool.h"
#include "src/trace/rank_decoder.h"
#include "src/trace/recording_summary.h"

namespace verbena::cli {

namespace {

constexpr const char* kUsage =
    "usage: verbena trace [-o FOLDER] [--without-large-counts] -- mpiexec -n 4 PROGRAM [ARGS...]";

struct RecordOptions {
  std::string folder = "verbena-trace";
  bool small = false;
  std::vector<std::string> program;
};

Result<RecordOptions> parse_record(const std::vector<std::string>& arguments) {
  RecordOptions options;
  size_t at = 0;
  for (; at < arguments.size() && arguments[at] != "--"; ++at) {
    const std::string& word = arguments[at];
    if (word == "--without-large-counts") {
      options.small = true;
    } else if ((word == "-o" || word == "--output") && at + 1 < arguments.size()) {
      options.folder = arguments[++at];
    } else if (word.starts_with("--output=")) {
      options.folder = word.substr(word.find('=') + 1);
    } else if (word.starts_with("-")) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("trace: no option '{}'; {}", word, kUsage));
    } else {
      break;
    }
  }
  if (at < arguments.size() && arguments[at] == "--") ++at;
  options.program.assign(arguments.begin() + static_cast<std::ptrdiff_t>(at), arguments.end());
  if (options.program.empty() || options.program[0].empty() || options.folder.empty()) {
    return Status(StatusCode::kInvalidArgument, fmt::format("trace: no program given; {}", kUsage));
  }
  return options;
}

bool is_rank_file(const std::string& name) {
  return name.starts_with("rank-") && name.ends_with(".trace");
}

// Nothing is removed where something else lies beside a recording.
Status check_folder(const std::string& folder) {
  std::error_code error;
  if (!std::filesystem::exists(folder, error)) return Status::ok_status();
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    if (is_rank_file(name)) continue;
    return {StatusCode::kInvalidArgument,
            fmt::format("{} has other files than a recording, such as {}; name another folder "
                        "with -o",
                        folder, name)};
  }
  if (!error) return Status::ok_status();
  return {StatusCode::kInvalidArgument,
          fmt::format("cannot read the folder {}: {}; name another one with -o", folder,
                      error.message())};
}

// Files of an earlier recording would be taken for ranks of this one.
Status prepare_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  std::error_code unknown;
  if (!std::filesystem::is_directory(folder, unknown)) {
    return {StatusCode::kInvalidArgument,
            fmt::format("cannot make the folder {}: {}; name another one with -o", folder,
                        error ? error.message() : "something else has its name")};
  }
  VERBENA_RETURN_IF_ERROR(check_folder(folder));
  std::vector<std::filesystem::path> earlier;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (is_rank_file(entry.path().filename())) earlier.push_back(entry.path());
  }
  for (size_t i = 0; i < earlier.size() && !error; ++i) {
    std::filesystem::remove(earlier[i], error);
  }
  if (!error) return Status::ok_status();
  return {StatusCode::kInvalidArgument,
          fmt::format("cannot empty {}: {}; name another folder with -o", folder, error.message())};
}

// As spawn() looks for it.
Status find_program(const std::string& name) {
  const auto runs = [](const std::string& path) {
    std::error_code error;
    return access(path.c_str(), X_OK) == 0 && !std::filesystem::is_directory(path, error);
  };
  bool found = name.find('/') != std::string::npos && runs(name);
  if (name.find('/') == std::string::npos) {
    const char* path = std::getenv("PATH");
    std::istringstream folders(path != nullptr ? path : "/bin:/usr/bin");
    for (std::string folder; !found && std::getline(folders, folder, ':');) {
      found = runs((folder.empty() ? "." : folder) + "/" + name);
    }
  }
  if (found) return Status::ok_status();
  return {
      StatusCode::kNotFound,
      fmt::format("cannot start {}: there is no such program; name the MPI's launcher behind --",
                  name)};
}

// --- the program, and the signals that end it ---

std::atomic<pid_t> program_process{0};
std::atomic<int> pending_signal{0};  // came while there was no program to pass it on to
std::atomic<int> passed_signal{0};
static_assert(std::atomic<pid_t>::is_always_lock_free, "a signal handler uses it");

void pass_on(int number) {
  const int error = errno;  // of whatever it interrupts
  passed_signal.store(number);
  const pid_t program = program_process.load();
  if (program > 0) {
    kill(program, number);
  } else {
    pending_signal.store(number);
  }
  errno = error;
}

void pass_on_signals() {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action {};
    // Ignored by nohup, or by a shell in front of a command in the background, it is for the
    // program, too.
    if (sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN) continue;
    action = {};
    action.sa_handler = pass_on;
    // Ctrl-C is the program's already: this one waits for its end.
    if (number == SIGINT) action.sa_handler = [](int) {};
    sigaction(number, &action, nullptr);
  }
}

// A launcher that gets a signal ends its ranks. Whoever sent it to this process is told that it
// came: the exit code is 128 + the signal.
Result<int> run_launcher(const std::vector<std::string>& program, const SpawnOptions& options) {
  pass_on_signals();
  VERBENA_ASSIGN_OR_RETURN(const pid_t process, spawn(program, options));
  program_process.store(process);
  if (const int number = pending_signal.exchange(0); number != 0) kill(process, number);
  // It stays a zombie until no signal is passed on any more: its number could be another's.
  siginfo_t end{};
  while (waitid(P_PID, static_cast<id_t>(process), &end, WEXITED | WNOWAIT) < 0 && errno == EINTR) {
  }
  program_process.store(0);
  VERBENA_ASSIGN_OR_RETURN(const int exit_code, wait_for_exit(process));
  return passed_signal.load() != 0 ? 128 + passed_signal.load() : exit_code;
}

// Open MPI 5 and older have no calls with large counts. The launcher says what it is.
bool is_without_large_counts(const std::string& launcher) {
  const std::filesystem::path name = std::filesystem::path(launcher).filename();
  if (name != "mpiexec" && name != "mpirun" && name != "prterun") return false;
  // Without a name, which somebody else could have taken.
  const FileDescriptor answer(memfd_create("verbena-mpi-version", MFD_CLOEXEC));
  if (!answer.valid()) return false;
  const Result<int> exit_code = run_and_wait(
      {launcher, "--version"},
      {.descriptors = {{answer.get(), 1}}, .files = {{.descriptor = 2, .path = "/dev/null"}}});
  std::string text;
  if (exit_code.ok()) {
    text.resize(4096);
    const ssize_t length = pread(answer.get(), text.data(), text.size(), 0);
    text.resize(length > 0 ? static_cast<size_t>(length) : 0);
  }
  const size_t found = text.find("(Open MPI) ");
  if (found == std::string::npos) return text.find("OpenRTE") != std::string::npos;
  return std::atoi(text.c_str() + found + std::string_view("(Open MPI) ").size()) <= 5;
}

}  // namespace

int record_mpi_program(const std::vector<std::string>& arguments) {
  const Result<RecordOptions> options = parse_record(arguments);
  if (!options.ok()) return fail_command(kExitUsage, options.status().message());
  Status ready = check_folder(options->folder);
  if (ready.ok()) ready = find_program(options->program[0]);
  if (!ready.ok()) return fail_command(kExitFailure, ready.message());
  const bool small = options->small || is_without_large_counts(options->program[0]);
  const Result<std::string> library =
      find_library(small ? "libverbena-trace-small.so" : "libverbena-trace.so");
  if (!library.ok()) return fail_command(kExitFailure, library.status().message());
  const char* present = std::getenv("LD_PRELOAD");
  const Result<std::string> preload = append_preload(present != nullptr ? present : "", *library);
  if (!preload.ok()) return fail_command(kExitFailure, preload.status().message());
  ready = prepare_folder(options->folder);
  if (!ready.ok()) return fail_command(kExitFailure, ready.message());

  const Result<int> exit_code = run_launcher(
      options->program,
      {.environment = {{"LD_PRELOAD", *preload},
                       {"VERBENA_TRACE_OUT", std::filesystem::absolute(options->folder)}}});
  if (!exit_code.ok()) return fail_command(kExitFailure, exit_code.status().message());
  const Result<trace::RecordedJob> job = trace::read_recording(options->folder);
  if (!job.ok()) {
    // The program's own failure is what its exit code says.
    return fail_command(*exit_code != 0 ? *exit_code : kExitFailure, job.status().message());
  }
  print_error_output("verbena: {}\n{}", trace::headline(*job), trace::omissions_text(*job));
  return *exit_code;
}

}  // namespace verbena::cli
