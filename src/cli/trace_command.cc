// `verbena trace`: records an MPI program, shows what a recording has, and replays it.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "src/base/output.h"
#include "src/bench/experiment/size_list.h"
#include "src/bench/message/replay_report.h"
#include "src/bench/message/replay_source.h"
#include "src/bench/result/text_table.h"
#include "src/bench/run/simulated_nodes.h"
#include "src/bench/workloads.h"
#include "src/cli/axis_options.h"
#include "src/cli/commands.h"
#include "src/cli/experiment.h"
#include "src/cli/tool.h"
#include "src/trace/rank_decoder.h"
#include "src/trace/recording_summary.h"

namespace verbena::cli {

namespace {

constexpr const char* kFolder = "verbena-trace";
// A replay has its own pace: a rank may compute for long while the others wait.
constexpr uint64_t kReplayStallNs = 3'600'000'000'000;

int show_recording(const std::string& folder) {
  const Result<trace::RecordedJob> job = trace::read_recording(folder);
  if (!job.ok()) return report_error(job.status());
  print_output("{}", trace::summary_text(*job));
  return finish_output();
}

// --- replaying ---

struct ReplayOptions {
  std::string folder = kFolder;
  std::string device = "soft0";
  std::string json;
  AxisTexts axes;
};

// A folder of this process's own, gone with it.
class ReportFolder {
 public:
  ReportFolder() {
    std::error_code error;
    std::string name = std::filesystem::temp_directory_path(error) / "verbena-replay-XXXXXX";
    if (!error && mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~ReportFolder() {
    std::error_code error;
    if (!path_.empty()) std::filesystem::remove_all(path_, error);
  }
  ReportFolder(const ReportFolder&) = delete;
  ReportFolder& operator=(const ReportFolder&) = delete;
  const std::string& path() const { return path_; }  // empty: there is none

 private:
  std::string path_;
};

Result<std::string> ranks_table(const trace::RecordedJob& job, const std::string& reports) {
  constexpr uint32_t kMostLines = 64;
  std::vector<std::vector<std::string>> lines = {
      {"rank", "time", "recorded", "computing", "in calls", "share", "messages", "bytes"}};
  uint64_t longest_ns = 0;
  double share = 0;
  for (uint32_t rank = 0; rank < job.size(); ++rank) {
    VERBENA_ASSIGN_OR_RETURN(const bench::ReplayReport report, bench::read_report(reports, rank));
    longest_ns = std::max(longest_ns, report.elapsed_ns);
    const double of_rank = report.elapsed_ns == 0 ? 0
                                                  : static_cast<double>(report.call_ns) /
                                                        static_cast<double>(report.elapsed_ns);
    share += of_rank / job.size();
    if (rank >= kMostLines) continue;
    const auto time = [](uint64_t ns) { return bench::time_text(static_cast<double>(ns)); };
    lines.push_back({fmt::format("{}", rank), time(report.elapsed_ns),
                     time(job.ranks[rank].elapsed_ns), time(report.compute_ns),
                     time(report.call_ns), fmt::format("{:.1f} %", 100 * of_rank),
                     fmt::format("{}", report.messages), bench::size_text(report.bytes)});
  }
  std::string text = bench::text_table(lines, 0);
  if (job.size() > kMostLines) text += fmt::format("... and {} more\n", job.size() - kMostLines);
  text += fmt::format("predicted time: {}, of which {:.1f} % in calls, the mean of all ranks\n",
                      bench::time_text(static_cast<double>(longest_ns)), 100 * share);
  return text + trace::omissions_text(job);
}

int replay_recording(const Tool& tool, const ReplayOptions& options) {
  const Result<trace::RecordedJob> job = trace::read_recording(options.folder);
  if (!job.ok()) return report_error(job.status());
  if (job->size() < 2) {
    return report_error(
        {StatusCode::kInvalidArgument,
         fmt::format("{} is of one rank, and a replay takes two at least", options.folder)});
  }
  const ReportFolder reports;
  if (reports.path().empty()) {
    return report_error({StatusCode::kUnavailable,
                         "cannot make a folder for the ranks' reports; is TMPDIR writable?"});
  }
  // Of this process and of those that it starts for ranks.
  for (const auto& [name, value] : {std::pair{bench::kRecordingVariable, options.folder},
                                    std::pair{bench::kReplayReportVariable, reports.path()}}) {
    if (setenv(name, std::filesystem::absolute(value).c_str(), 1) != 0) {
      return report_error({StatusCode::kInternal, fmt::format("cannot set {}", name)});
    }
  }
  const bench::Workload& workload = *bench::find_workload("message");
  bench::Sweep sweep = bench::Sweep::of(workload);
  Status status = sweep.set("test", "replay");
  if (status.ok()) status = sweep.set("peers", fmt::format("{}", job->size() - 1));
  for (const auto& [name, text] : options.axes) {
    if (status.ok()) status = sweep.set(name, text);
  }
  if (!status.ok()) return report_error(status);
  Experiment experiment;
  experiment.plan.sweeps.push_back(std::move(sweep));
  experiment.plan.runs = 1;
  experiment.plan.run.stall_ns = kReplayStallNs;
  experiment.plan.run.length.requests = 1;
  experiment.plan.run.length.duration_ns = bench::kUnlimitedRunNs;
  experiment.device = options.device;
  experiment.command = bench::command_text(tool.argc, tool.argv);
  experiment.json_path = options.json;
  const int exit_code = run_experiment(experiment);
  if (exit_code != 0) return exit_code;
  const Result<std::string> table = ranks_table(*job, reports.path());
  if (!table.ok()) return report_error(table.status());
  print_output("{}", *table);
  return finish_output();
}

void add_show(Tool& tool, CLI::App& trace) {
  CLI::App* command = trace.add_subcommand(
      "show", "What a recording has: calls, bytes, sizes, peers, and the share of computing");
  const auto folder = std::make_shared<std::string>(kFolder);
  CLI::Option* option = command->add_option("FOLDER", *folder, "The folder of the recording");
  option->option_text(fmt::format("({})", kFolder));
  tool.takes_path[option] = true;
  command->footer(examples_text({"verbena trace show verbena-trace"}));
  command->callback([&tool, folder] { tool.exit_code = show_recording(*folder); });
}

void add_replay(Tool& tool, CLI::App& trace) {
  CLI::App* command = trace.add_subcommand(
      "replay", "Make a recording's calls again, on a device or in the simulator");
  const auto options = std::make_shared<ReplayOptions>();
  CLI::Option* folder =
      command->add_option("FOLDER", options->folder, "The folder of the recording");
  folder->option_text(fmt::format("({})", kFolder));
  tool.takes_path[folder] = true;
  CLI::Option* device =
      command->add_option("--device", options->device, "The device; 'verbena devices' lists them");
  device->option_text("NAME (soft0)");
  tool.choices[device] = {"soft0"};
  for (const std::string& name : simulated_devices()) tool.choices[device].push_back(name);
  const bench::Workload& workload = *bench::find_workload("message");
  for (const bench::Axis& axis : workload.traits().axes) {
    static constexpr std::string_view kOffered[] = {
        "eager", "ring-slots", "credits", "polling-set", "inline", "policy",
        "order", "channel",    "compute", "reuse",       "index",  "long-messages"};
    if (std::find(std::begin(kOffered), std::end(kOffered), axis.name) == std::end(kOffered)) {
      continue;
    }
    add_axis_option(tool, *command, axis, options->axes, Values::kOne);
  }
  CLI::Option* json =
      command->add_option("--json", options->json, "Write the results to this file");
  json->option_text("FILE");
  tool.takes_path[json] = true;
  command->footer(
      "Each rank makes its calls with Verbena's messages and computes as long as it did between\n"
      "them; --compute says how much of that, in percent. In the simulator that is virtual "
      "time.\n\n" +
      examples_text({"verbena trace replay verbena-trace --device sim:infinihost-mt23108",
                     "verbena trace replay --channel send --compute 50"}));
  command->callback([&tool, options] { tool.exit_code = replay_recording(tool, *options); });
}

}  // namespace

void add_trace_command(Tool& tool) {
  CLI::App* command = tool.app.add_subcommand(
      "trace", "Record the calls of an MPI program, show them, and replay them on any device");
  command->require_subcommand(1);
  CLI::App* record = command->add_subcommand(
      "record", "Start an MPI program and record its calls; `trace --` is the same");
  record->prefix_command();
  // Parsed by run_other_program(); these are for the help page.
  const auto unused = std::make_shared<std::vector<std::string>>();
  const auto folder = std::make_shared<std::string>();
  const auto flag = std::make_shared<bool>();
  record->add_option("-o,--output", *folder, "The folder for the recording, a file for each rank")
      ->option_text(fmt::format("FOLDER ({})", kFolder));
  record
      ->add_flag("--without-large-counts", *flag,
                 "For an MPI without the calls of MPI 4 such as MPI_Send_c; found out for Open MPI")
      ->option_text(" ");
  record->add_option("MPIEXEC", *unused, "The launcher of any MPI and its arguments, behind --")
      ->option_text("...");
  record->callback([unused, folder, flag] {});
  record->footer(examples_text({"verbena trace record -o ring -- mpiexec -n 4 ./ring",
                                "verbena trace -o ring -- mpiexec -n 4 ./ring"}));
  add_show(tool, *command);
  add_replay(tool, *command);
  command->footer(
      examples_text({"verbena trace -o ring -- mpiexec -n 4 ./ring", "verbena trace show ring",
                     "verbena trace replay ring --device sim:infinihost-mt23108"}));
}

}  // namespace verbena::cli
