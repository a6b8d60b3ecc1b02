// `verbena sim explain hashtable` and so on: which unit limits a workload on simulated RNICs.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/base/output.h"
#include "src/bench/experiment/plan.h"
#include "src/bench/explain/explain_point.h"
#include "src/bench/explain/point_usage.h"
#include "src/bench/explain/waterfall.h"
#include "src/bench/result/model_evidence.h"
#include "src/bench/result/result_file.h"
#include "src/bench/result/text_table.h"
#include "src/bench/run/simulated_nodes.h"
#include "src/bench/workloads.h"
#include "src/cli/axis_options.h"
#include "src/cli/length_options.h"
#include "src/cli/sim_command.h"
#include "src/device/sim/rnic_profile.h"

namespace verbena::cli {

namespace {

constexpr uint64_t kOperations = 40'000;
// Of the run in which one operation is followed.
constexpr uint64_t kFollowedNs = 500'000;

constexpr const char* kUsageHelp =
    R"(Runs each combination of the lists once, and shows beside its results how busy the nodes were:
the share of the timed phase in which a unit worked. Of several threads or queue pairs of a node,
and of several nodes, it is the busiest one's. A unit that is busy nearly all the time is what
limits; where none is, operations wait for round trips or for each other (a lock, a contended word).

  CPU             a thread, without polls that find nothing
  bus to RNIC     doorbells, WQEs, payloads of sends (PCIe reads)
  bus to memory   payloads and completions (PCIe writes)
  doorbells       those whose queue pair context is fetched first
  queue pair      the gap between two messages of one
  sending side    of the RNIC: packets made, and contexts fetched for them
  receiving side  of the RNIC: packets taken, and contexts fetched for them
  atomic unit     compare-and-swap, fetch-and-add
  link out, in    to the switch, from the switch

With a single combination, all units are listed, and of a ping-pong of messages the way of the
median one, step by step. --json writes a result file whose rows also have
the usage by role.

)";

struct UsageOptions {
  AxisTexts axes;
  std::string device;
  std::string operations;
  std::string json;
};

Result<std::vector<bench::Point>> parse_points(const bench::Workload& workload,
                                               const UsageOptions& options) {
  VERBENA_RETURN_IF_ERROR(check_simulated_device(options.device));
  bench::Sweep sweep = bench::Sweep::of(workload);
  for (const auto& [name, text] : options.axes) VERBENA_RETURN_IF_ERROR(sweep.set(name, text));
  bench::Plan plan;
  plan.sweeps.push_back(std::move(sweep));
  VERBENA_ASSIGN_OR_RETURN(const auto groups, bench::point_groups(plan));
  bench::SimulatedNodes nodes(bench::simulation_seed(), /*copy_all=*/true);
  VERBENA_RETURN_IF_ERROR(nodes.add(options.device, 1));
  VERBENA_RETURN_IF_ERROR(bench::check_points(groups, nodes.info()));
  std::vector<bench::Point> points;
  for (const auto& group : groups) points.insert(points.end(), group.begin(), group.end());
  return points;
}

// The way of the median operation.
Status print_path(const std::string& device, const bench::Point& point) {
  sim::Recorder recorder(bench::kMostRecordedSteps);
  VERBENA_ASSIGN_OR_RETURN(
      const bench::Explanation explanation,
      bench::explain_point(device, point, {.duration_ns = kFollowedNs}, 0.5, &recorder));
  const bench::MessagePath& path = explanation.path;
  print_output("\nThe median of {} operations takes {}:\n\n{}\n{}\n{}", explanation.messages,
               bench::time_text(static_cast<double>(path.measured_ns)),
               bench::waterfall_text(path, recorder.threads()), bench::summary_text(path),
               bench::sum_text(path));
  if (path.adds_up()) return Status::ok_status();
  return {StatusCode::kUnavailable,
          "the steps do not add up to the measured latency; what is missing is listed as not "
          "explained"};
}

int explain_workload(const Tool& tool, const bench::Workload& workload,
                     const UsageOptions& options) {
  const Result<std::vector<bench::Point>> points = parse_points(workload, options);
  if (!points.ok()) return report_error(points.status());
  uint64_t operations = kOperations;
  if (!options.operations.empty()) {
    const Result<uint64_t> parsed = parse_one(
        options.operations, {.what = "number of operations", .min = 1, .max = bench::kMaxRequests});
    if (!parsed.ok()) return report_error(parsed.status());
    operations = *parsed;
  }
  if (!options.json.empty()) {
    const Status writable = bench::check_writable(options.json);
    if (!writable.ok()) return report_error(writable);
  }
  std::vector<bench::PointResult> results;
  std::vector<bench::PointUsage> usages;
  for (const bench::Point& point : *points) {
    Result<bench::PointUsage> usage = bench::measure_usage(options.device, point, operations);
    if (!usage.ok()) {
      return report_error({usage.status().code(),
                           fmt::format("{}: {}", workload.text(point), usage.status().message())});
    }
    results.push_back({.point = point, .number = results.size(), .runs = {usage->run}});
    usages.push_back(std::move(*usage));
  }
  print_output("{}\n{}", workload.table(results), bench::limits_table(results, usages));
  if (usages.size() == 1) print_output("\n{}", bench::usage_table(usages.front()));
  if (usages.size() == 1 && workload.is_followed(points->front())) {
    const Status followed = print_path(options.device, points->front());
    if (!followed.ok()) return report_error(followed);
  }
  print_output("{}", bench::model_text(options.device));
  if (options.json.empty()) return 0;
  nlohmann::json document = bench::result_document(
      {.device = options.device, .command = bench::command_text(tool.argc, tool.argv)}, results);
  for (size_t i = 0; i < usages.size(); ++i) {
    document["results"][i]["usage"] = bench::usage_json(usages[i]);
  }
  const Status written = bench::write_json_file(options.json, document);
  return written.ok() ? 0 : report_error(written);
}

// Of the example.
std::string_view varied_axis(const bench::Workload& workload) {
  constexpr std::string_view kThreads = "threads";
  const bool has_threads = workload.find_axis(kThreads) != nullptr;
  return has_threads ? kThreads : workload.traits().axes.front().name;
}

void add_workload(Tool& tool, CLI::App& explain, const bench::Workload& workload) {
  const std::string name(workload.traits().name);
  CLI::App* command = explain.add_subcommand(
      name, fmt::format("Show which unit limits {}", workload.traits().subject));
  refuse_options_in_front(explain, *command);
  const auto options = std::make_shared<UsageOptions>();
  add_simulated_device(tool, *command, options->device);
  add_axis_options(tool, *command, workload, options->axes);
  command
      ->add_option("--operations", options->operations,
                   "About how many operations of all threads together a run has")
      ->option_text(fmt::format("N ({})", kOperations));
  CLI::Option* json =
      command->add_option("--json", options->json, "Write results and usage to this file");
  json->option_text("FILE");
  tool.takes_path[json] = true;
  command->footer(kUsageHelp + examples_text({fmt::format(
                                   "verbena sim explain {} --{} 1,2,4 --device sim:connectx3-40g",
                                   name, varied_axis(workload))}));
  command->callback(
      [&tool, &workload, options] { tool.exit_code = explain_workload(tool, workload, *options); });
}

}  // namespace

void add_sim_explain_workloads(Tool& tool, CLI::App& explain) {
  for (const bench::Workload* workload : bench::workloads()) {
    // A topology of requests and responses is a word of `sim explain` itself.
    if (!workload->traits().has_topology) add_workload(tool, explain, *workload);
  }
}

}  // namespace verbena::cli
