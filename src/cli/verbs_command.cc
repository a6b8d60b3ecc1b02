// `verbena verbs`: single one-sided and two-sided verbs measured, without a protocol on top.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "src/bench/axis.h"
#include "src/bench/plan.h"
#include "src/bench/result_file.h"
#include "src/bench/simulated_nodes.h"
#include "src/cli/axis_options.h"
#include "src/cli/commands.h"
#include "src/cli/experiment.h"
#include "src/cli/experiment_option.h"
#include "src/cli/length_options.h"
#include "src/cli/tool.h"

namespace verbena::cli {

namespace {

constexpr const char* kVerbsHelp =
    "Two nodes, each a process: the threads of one post, each over a queue pair of its own, and a\n"
    "thread of the other has the memory that they reach. Lists sweep: all combinations are "
    "measured.\n\n"
    "An operation moves --entries buffers of --size bytes. --method says how they become work "
    "requests:\n"
    "  sp        the CPU copies them into one buffer, which one work request writes (READ: copies "
    "them apart)\n"
    "  sgl       one work request whose gather list has them all\n"
    "  doorbell  a work request each, announced by one doorbell\n"
    "With one entry, sgl and doorbell are the plain verb.\n\n"
    "look is no verb: a round over the marks of --entries channels of --size bytes in the own "
    "region,\n"
    "into which nobody writes; its latency is the polling time of so many channels.\n\n"
    "Addresses: regions are used from their beginning to their end, again and again (seq), or "
    "each\n"
    "place is drawn anew (rand).\n\n"
    "Latency: from before the CPU work and the post of an operation until its completion is "
    "taken.\n"
    "Completions of WRITEs, READs and atomics come when the other side has acknowledged them, on "
    "soft0\n"
    "when they are done. The bytes are not checked: 'verbena bench' does that.\n\n"
    "Exit code: 0; 1 something failed (finished points are kept); 2 wrong usage; 130 Ctrl-C.\n\n";

struct VerbsOptions {
  std::string experiment;
  AxisTexts axes;
  std::string device = "soft0";
  LengthTexts length;
  std::string json;
  bool resume = false;
};

Result<bench::Plan> parse_plan(const VerbsOptions& options) {
  bench::Plan plan;
  if (options.experiment.empty()) {
    plan.sweeps.push_back(bench::Sweep::of_verbs());
  } else {
    VERBENA_ASSIGN_OR_RETURN(plan, read_experiment(options.experiment));
    if (plan.sweeps.front().subject() != bench::Subject::kVerbs) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("{} is about requests and responses; 'verbena bench --experiment' "
                                "measures it",
                                options.experiment));
    }
  }
  for (bench::Sweep& sweep : plan.sweeps) {
    for (const auto& [name, text] : options.axes) {
      VERBENA_RETURN_IF_ERROR(sweep.set(name, text));
    }
  }
  VERBENA_RETURN_IF_ERROR(apply_length(options.length, &plan));
  return plan;
}

int measure(const Tool& tool, const VerbsOptions& options) {
  Result<bench::Plan> plan = parse_plan(options);
  if (!plan.ok()) return report_error(plan.status());
  Experiment experiment;
  experiment.plan = std::move(*plan);
  experiment.device = options.device;
  experiment.command = bench::command_text(tool.argc, tool.argv);
  experiment.json_path = options.json;
  experiment.resume = options.resume;
  bench::fit_to_simulation(experiment.device, options.length.chosen(), &experiment.plan);
  return run_experiment(experiment);
}

}  // namespace

void add_verbs_command(Tool& tool) {
  CLI::App* command = tool.app.add_subcommand(
      "verbs", "Measure single verbs: WRITE, READ, SEND, atomics, vector IO, access patterns");
  const auto options = std::make_shared<VerbsOptions>();
  CLI::Option* device =
      command->add_option("--device", options->device, "The device; 'verbena devices' lists them");
  device->option_text("NAME (soft0)");
  tool.choices[device] = {"soft0"};
  for (const std::string& name : simulated_devices()) tool.choices[device].push_back(name);
  add_axis_options(tool, *command, bench::Subject::kVerbs, options->axes);
  add_length_options(*command, "--operations",
                     "How many operations each thread posts in a run, instead of a time",
                     options->length);
  CLI::Option* json =
      command->add_option("--json", options->json, "Write the results there, after every run");
  json->option_text("FILE");
  CLI::Option* resume = command->add_flag(
      "--resume", options->resume,
      "Go on from what the --json file has of this very plan, after an interruption");
  resume->option_text(" ")->needs(json);
  CLI::Option* experiment =
      command->add_option("--experiment", options->experiment,
                          "Measure a paper's figure by its name, or what this file says; other "
                          "options replace it");
  experiment->option_text("NAME|FILE");
  tool.takes_path[json] = tool.takes_path[experiment] = true;
  tool.choices[experiment] = experiment_names();
  command->footer(
      kVerbsHelp +
      examples_text(
          {"verbena verbs --operation write,read --size 8,...,4KiB --pending 1,32 --duration 10ms",
           "verbena verbs --method all --entries 4,16 --inline 0 --pending 16 --device "
           "sim:connectx3-40g",
           "verbena verbs --operation fetch-add --threads 2 --duration 10ms --json atomics.json"}));
  command->callback([&tool, options] { tool.exit_code = measure(tool, *options); });
}

}  // namespace verbena::cli
