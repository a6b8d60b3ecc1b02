// A command for each workload that has no command of its own, such as `verbena verbs` and
// `verbena app log`: on this host, or on those of a launcher.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/bench/experiment/plan.h"
#include "src/bench/result/result_file.h"
#include "src/bench/run/simulated_nodes.h"
#include "src/bench/workloads.h"
#include "src/cli/axis_options.h"
#include "src/cli/commands.h"
#include "src/cli/experiment.h"
#include "src/cli/experiment_option.h"
#include "src/cli/job_experiment.h"
#include "src/cli/length_options.h"
#include "src/cli/tool.h"

namespace verbena::cli {

namespace {

constexpr const char* kHosts =
    "Several hosts: srun or 'mpiexec verbena {} ... --job', one rank per host; see\n"
    "docs/running-on-a-cluster.md.\n\n";
constexpr const char* kExitCodes =
    "Exit code: 0; 1 something failed (finished points are kept); 2 wrong usage; 130 Ctrl-C.\n\n";

struct WorkloadOptions {
  std::string topology;
  std::string experiment;
  AxisTexts axes;
  std::string device = "soft0";
  LengthTexts length;
  std::string json;
  bool resume = false;
  bool verify = false;
  std::string secret_file;
  JobFlags job;
};

Result<bench::Plan> parse_workload_plan(const bench::Workload& workload,
                                        const WorkloadOptions& options) {
  bench::Plan plan;
  if (!options.experiment.empty()) {
    VERBENA_ASSIGN_OR_RETURN(plan, read_experiment(options.experiment, workload));
  } else if (workload.traits().has_topology) {
    VERBENA_ASSIGN_OR_RETURN(bench::Sweep sweep, bench::Sweep::in(options.topology, workload));
    plan.sweeps.push_back(std::move(sweep));
  } else {
    plan.sweeps.push_back(bench::Sweep::of(workload));
  }
  for (bench::Sweep& sweep : plan.sweeps) {
    for (const auto& [name, text] : options.axes) {
      VERBENA_RETURN_IF_ERROR(sweep.set(name, text));
    }
  }
  VERBENA_RETURN_IF_ERROR(apply_length(options.length, &plan));
  plan.run.verify = plan.run.verify || options.verify;
  return plan;
}

int measure_workload(const Tool& tool, const bench::Workload& workload,
                     const WorkloadOptions& options) {
  Result<bench::Plan> plan = parse_workload_plan(workload, options);
  if (!plan.ok()) return report_error(plan.status());
  Experiment experiment;
  experiment.plan = std::move(*plan);
  experiment.device = options.device;
  experiment.command = bench::command_text(tool.argc, tool.argv);
  experiment.json_path = options.json;
  experiment.resume = options.resume;
  experiment.secret_file = options.secret_file;
  bench::fit_to_simulation(experiment.device, options.length.chosen(), &experiment.plan);
  if (options.job.any()) return run_experiment_in_job(options.job, std::move(experiment));
  return run_experiment(experiment);
}

// The command that those of the group are below; it is made with the first of them.
CLI::App& group_of(Tool& tool, const bench::WorkloadCommand& texts) {
  if (texts.group.empty()) return tool.app;
  const std::string name(texts.group);
  for (CLI::App* command : tool.app.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_name() == name) return *command;
  }
  CLI::App* group = tool.app.add_subcommand(
      name, "Measure the applications of remote memory, under the loads that they are made for");
  group->require_subcommand(1);
  std::vector<std::string> examples;
  for (const bench::Workload* workload : bench::workloads()) {
    const bench::WorkloadCommand& command = workload->traits().command;
    if (command.group == texts.group) examples.emplace_back(command.examples.front());
  }
  group->footer(examples_text(examples));
  return *group;
}

void add_workload_command(Tool& tool, const bench::Workload& workload) {
  const bench::WorkloadCommand& texts = workload.traits().command;
  CLI::App& group = group_of(tool, texts);
  CLI::App* command = group.add_subcommand(std::string(texts.name), std::string(texts.summary));
  refuse_options_in_front(group, *command);
  const auto options = std::make_shared<WorkloadOptions>();
  CLI::Option* topology = nullptr;
  if (workload.traits().has_topology) topology = add_topology(tool, *command, options->topology);
  CLI::Option* device =
      command->add_option("--device", options->device, "The device; 'verbena devices' lists them");
  device->option_text("NAME (soft0)");
  tool.choices[device] = {"soft0"};
  for (const std::string& name : simulated_devices()) tool.choices[device].push_back(name);
  add_axis_options(tool, *command, workload, options->axes);
  add_length_options(*command, "--operations", std::string(texts.operations_help), options->length);
  if (workload.traits().verifies) {
    command
        ->add_flag("--verify", options->verify,
                   "Check what every operation did; what takes time for that counts")
        ->option_text(" ");
  }
  CLI::Option* json = command->add_option("--json", options->json,
                                          "Write the results to this file after every run");
  json->option_text("FILE");
  CLI::Option* resume = command->add_flag(
      "--resume", options->resume,
      "After an interruption, measure only what the --json file lacks of this plan");
  resume->option_text(" ")->needs(json);
  CLI::Option* experiment =
      command->add_option("--experiment", options->experiment,
                          "Measure a figure of the papers, by name, or an experiment file; other "
                          "options override it");
  experiment->option_text("NAME|FILE");
  if (topology != nullptr) experiment->excludes(topology);
  tool.takes_path[json] = tool.takes_path[experiment] = true;
  std::string hosts;
  if (texts.over_hosts) {
    CLI::Option* secret = command->add_option(
        "--secret-file", options->secret_file,
        "Several hosts: a file of mode 0600 with the secret that all sides share");
    secret->option_text("FILE");
    tool.takes_path[secret] = true;
    add_job_flags(*command, options->job);
    hosts = fmt::format(kHosts, bench::command_words(texts));
  }
  tool.choices[experiment] = experiment_names();
  command->footer(
      std::string(texts.help) + hosts + kExitCodes +
      examples_text(std::vector<std::string>(texts.examples.begin(), texts.examples.end())));
  command->callback(
      [&tool, &workload, options] { tool.exit_code = measure_workload(tool, workload, *options); });
}

}  // namespace

void add_workload_commands(Tool& tool) {
  for (const bench::Workload* workload : bench::workloads()) {
    if (!workload->traits().command.summary.empty()) add_workload_command(tool, *workload);
  }
}

}  // namespace verbena::cli
