#include "src/bench/explain/profiler.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <utility>

#include "src/base/instruction_count.h"
#include "src/base/spawn.h"
#include "src/bench/experiment/workload.h"

namespace verbena::bench {

namespace {

constexpr int kFrequencyHz = 1999;
constexpr int kAnswerTimeoutMs = 30'000;

const char* event_name() { return InstructionCounter::available() ? "cycles" : "cpu-clock"; }

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
        process_, spawn_program({"perf", "record", "-q", "-e", fmt::format("{}:u", event_name()),
                                 "-F", fmt::format("{}", kFrequencyHz), "-D", "-1",
                                 fmt::format("--control=fd:{},{}", kControl, kAnswer), "-o", file_,
                                 "-p", fmt::format("{}", fmt::join(processes, ","))},
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
    static_cast<void>(wait_for_exit(process_));
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

Status check_perf() {
  const Result<std::string> tried =
      output_of({"perf", "stat", "-e", fmt::format("{}:u", event_name()), "-x", ",", "true"});
  if (tried.ok()) return Status::ok_status();
  return Status(StatusCode::kUnsupported,
                "perf does not work here; install it (package linux-perf, on Ubuntu "
                "linux-tools-generic) and allow it (kernel.perf_event_paranoid 2 or less)");
}

Result<SampleProfile> sample_point(NodePool& pool, const Point& point, const RunOptions& options) {
  const TemporaryFolder folder;
  VERBENA_RETURN_IF_ERROR(folder.status());
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
  SampleProfile profile = parse_profile(report);
  profile.event = event_name();
  return profile;
}

}  // namespace

SampleProfile parse_profile(std::string_view report) {
  SampleProfile profile;
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
    if (thread.find("request-") != std::string_view::npos ||
        thread.find("dispatch-") != std::string_view::npos) {
      requester[function] += percent;
    }
    if (thread.find("respond-") != std::string_view::npos) responder[function] += percent;
  }
  profile.requester = largest_shares(requester);
  profile.responder = largest_shares(responder);
  return profile;
}

Result<Profiler> Profiler::create(const std::string& device, bool nodes_here) {
  Profiler profiler;
  const Status perf = check_perf();
  profiler.samples_ = perf.ok();
  if (perf.ok() && InstructionCounter::available()) return profiler;
  Status counts = InstructionProfiler::check();
  if (counts.ok() && !nodes_here) {
    counts = Status(StatusCode::kUnsupported,
                    "valgrind counts for nodes that the coordinator started on its own host only");
  }
  if (counts.ok()) {
    profiler.instructions_ = std::make_unique<InstructionProfiler>(device);
  } else if (!perf.ok()) {
    return Status(StatusCode::kUnsupported, fmt::format("--profile finds no profiler: {}; or {}",
                                                        perf.message(), counts.message()));
  }
  profiler.without_instructions_ = counts.ok() ? std::string() : counts.message();
  return profiler;
}

Result<Profile> Profiler::profile(NodePool& pool, const Point& point, const RunOptions& options) {
  Profile profile;
  if (samples_) {
    VERBENA_ASSIGN_OR_RETURN(profile.samples, sample_point(pool, point, options));
  }
  if (instructions_ != nullptr) {
    VERBENA_ASSIGN_OR_RETURN(profile.instructions, instructions_->profile(point));
  }
  return profile;
}

nlohmann::json to_json(const Profile& profile, const Point& point) {
  const auto value_bytes = static_cast<double>(point.workload->operation_bytes(point).value);
  const auto shares = [](const std::vector<FunctionShare>& functions) {
    nlohmann::json list = nlohmann::json::array();
    for (const FunctionShare& one : functions) {
      list.push_back({{"function", one.function}, {"share", one.share}});
    }
    return list;
  };
  const auto cost = [&](const std::optional<InstructionCost>& side) -> nlohmann::json {
    if (!side) return nullptr;
    return {{"per_message", side->per_message},
            {"per_byte", side->per_message / value_bytes},
            {"messages_per_poll", side->messages_per_poll},
            {"functions", shares(side->functions)}};
  };
  nlohmann::json row = nlohmann::json::object();
  if (profile.samples) {
    row = {{"event", profile.samples->event},
           {"requester", shares(profile.samples->requester)},
           {"responder", shares(profile.samples->responder)}};
  }
  if (profile.instructions) {
    row["instructions"] = {{"requester", cost(profile.instructions->requester)},
                           {"responder", cost(profile.instructions->responder)}};
  }
  return row;
}

}  // namespace verbena::bench
