// `verbena bench`: protocols measured against each other, in any topology, between processes.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/bench/experiment/plan.h"
#include "src/bench/experiment/size_list.h"
#include "src/bench/experiment/topology.h"
#include "src/bench/request_response/request_response_workload.h"
#include "src/bench/result/result_file.h"
#include "src/bench/run/simulated_nodes.h"
#include "src/cli/axis_options.h"
#include "src/cli/commands.h"
#include "src/cli/experiment.h"
#include "src/cli/experiment_option.h"
#include "src/cli/job_experiment.h"
#include "src/cli/length_options.h"
#include "src/cli/tool.h"

namespace verbena::cli {

namespace {

constexpr const char* kBenchHelp =
    R"(Topologies; a node is a process, and each of its threads has a core while there are enough:
  one-to-one     one requester, one responder
  N-to-1, M:1    --nodes x --threads request, one node responds with --responder-threads
  1:M            one node requests, each of its threads from one thread of every responder node
  N-to-M         each request goes to a random thread of --responders nodes
  M:M            every node requests from all others, and responds to them

Sizes are numbers with or without B, KiB, MiB or GiB. Lists have commas; "64,…,4MiB" (or "...")
stands for every power of two in between. All combinations are measured. Protocols take turns, run
by run, so that they are compared under the same conditions.

Latency is the time from just before a request is posted until its response is taken, in a closed
loop: a slot's next request is posted once its response has come. It includes waiting behind other
pending requests. Queueing in front of the loop, as in a system that keeps sending while responses
are late (coordinated omission), cannot occur and is not measured. READ sends no request: its
request size is there for comparison only.

CPU is instructions per message where the machine counts them, else TSC cycles (result files have
both), of the polls that found a message. Handlers, posting and, on soft0, copying are included;
empty polls are not. --profile samples user space with perf; where only the clock can sample, it
needs a --duration of seconds. Where the machine counts no instructions, --profile counts them with
valgrind (callgrind) in a short extra run of each point, with nodes of its own on this host: per
message, per byte of the response, by function, and once more without empty polls. Threads are slow
there, so a poll may find more messages.

--variants N repeats the runs of a simulated RNIC on N variants of its profile, in N times the time,
and shows the band of rate and median latency, from the least to the most of them. A variant has
every parameter within +-20 % of its value, or within the range of one that is assumed;
--device sim:PROFILE#3 is variant 3 alone.

The commands below measure other things between processes, with options of their own.

An experiment is a TOML file with a topology and lists on axes, which are the options above without
their dashes. Those of the papers are found by name, as by 'verbena reproduce'.

Two hosts: --listen on one, --connect HOST on the other, with the same --secret-file, which
'(umask 077; openssl rand -hex 32 > job.secret)' makes. More hosts, or a launcher: srun or
'mpiexec verbena bench ... --job', one rank per host; see docs/running-on-a-cluster.md.

Exit code: 0; 1 something failed (finished points are kept); 2 wrong usage; 130 Ctrl-C.

)";

struct BenchOptions {
  std::string topology;
  std::string experiment;
  std::string limit_nodes;
  std::string limit_threads;
  bool resume = false;
  AxisTexts axes;
  std::string device = "soft0";
  LengthTexts length;
  std::string json;
  bool verify = false;
  bool profile = false;
  std::string port;
  std::string listen;
  std::string connect;
  std::string secret_file;
  JobFlags job;
};

Result<uint16_t> parse_port(const std::string& text) {
  VERBENA_ASSIGN_OR_RETURN(const uint64_t port,
                           parse_one(text, {.what = "port", .min = 0, .max = 65535}));
  return static_cast<uint16_t>(port);
}

// What the command line says replaces what the experiment says.
Status apply_options(const BenchOptions& options, bench::Plan* plan) {
  for (bench::Sweep& sweep : plan->sweeps) {
    for (const auto& [name, text] : options.axes) {
      VERBENA_RETURN_IF_ERROR(sweep.set(name, text));
    }
  }
  plan->run.verify = plan->run.verify || options.verify;
  plan->profile = options.profile;
  return apply_length(options.length, plan);
}

// Makes the papers' experiments fit a smaller machine.
Status limit(const std::string& text, const char* what,
             std::initializer_list<std::string_view> axes, bench::Plan* plan) {
  if (text.empty()) return Status::ok_status();
  VERBENA_ASSIGN_OR_RETURN(const uint64_t most,
                           parse_one(text, {.what = what, .min = 1, .max = bench::kMaxNodes}));
  for (bench::Sweep& sweep : plan->sweeps) {
    for (const std::string_view axis : axes) sweep.limit(axis, most);
  }
  return Status::ok_status();
}

Result<bench::Plan> parse_bench_plan(const BenchOptions& options) {
  bench::Plan plan;
  if (!options.experiment.empty()) {
    VERBENA_ASSIGN_OR_RETURN(
        plan, read_experiment(options.experiment, bench::request_response_workload()));
  } else if (options.topology.empty()) {
    return Status(StatusCode::kInvalidArgument,
                  "which topology? there are one-to-one, N-to-1 (or M:1), 1:M, N-to-M and M:M; see "
                  "'verbena bench --help'");
  } else {
    VERBENA_ASSIGN_OR_RETURN(
        bench::Sweep sweep, bench::Sweep::in(options.topology, bench::request_response_workload()));
    plan.sweeps.push_back(std::move(sweep));
  }
  VERBENA_RETURN_IF_ERROR(apply_options(options, &plan));
  VERBENA_RETURN_IF_ERROR(
      limit(options.limit_nodes, "limit of nodes", {"nodes", "responders"}, &plan));
  VERBENA_RETURN_IF_ERROR(
      limit(options.limit_threads, "limit of threads", {"threads", "responder-threads"}, &plan));
  return plan;
}

int listen(const BenchOptions& options) {
  Listening listening;
  listening.device = options.device;
  if (!options.listen.empty()) listening.address = options.listen;
  listening.secret_file = options.secret_file;
  const Result<uint16_t> port =
      options.port.empty() ? Result<uint16_t>(kDefaultPort) : parse_port(options.port);
  if (!port.ok()) return report_error(port.status());
  listening.port = *port;
  return listen_for_experiment(listening);
}

int measure_bench(const Tool& tool, const BenchOptions& options) {
  Result<bench::Plan> plan = parse_bench_plan(options);
  if (!plan.ok()) return report_error(plan.status());
  const uint16_t default_port = options.connect.empty() ? 0 : kDefaultPort;
  const Result<uint16_t> port =
      options.port.empty() ? Result<uint16_t>(default_port) : parse_port(options.port);
  if (!port.ok()) return report_error(port.status());
  Experiment experiment;
  experiment.plan = std::move(*plan);
  experiment.device = options.device;
  experiment.command = bench::command_text(tool.argc, tool.argv);
  experiment.json_path = options.json;
  experiment.resume = options.resume;
  experiment.port = *port;
  experiment.host = options.connect;
  experiment.secret_file = options.secret_file;
  bench::fit_to_simulation(experiment.device, options.length.chosen(), &experiment.plan);
  if (options.job.any()) return run_experiment_in_job(options.job, std::move(experiment));
  return run_experiment(experiment);
}

}  // namespace

void add_bench_command(Tool& tool) {
  CLI::App* command =
      tool.app.add_subcommand("bench", "Measure protocols side by side, in any topology");
  const auto options = std::make_shared<BenchOptions>();
  const auto add = [&](const std::string& name, std::string& value, const std::string& text,
                       const std::string& help) {
    return command->add_option(name, value, help)->option_text(text);
  };
  CLI::Option* topology = add_topology(tool, *command, options->topology);
  CLI::Option* device =
      add("--device", options->device, "NAME (soft0)", "The device; 'verbena devices' lists them");
  tool.choices[device] = {"soft0"};
  for (const std::string& name : simulated_devices()) tool.choices[device].push_back(name);
  std::vector<CLI::Option*> not_for_listeners =
      add_axis_options(tool, *command, bench::request_response_workload(), options->axes);
  for (CLI::Option* one : add_length_options(
           *command, "--requests",
           "How many requests each requesting thread sends in a run, instead of a time",
           options->length)) {
    not_for_listeners.push_back(one);
  }
  CLI::Option* verify = command->add_flag(
      "--verify", options->verify,
      "Check every byte of the measured requests and responses; slower. Without it "
      "only the warm-up is checked");
  verify->option_text(" ");
  CLI::Option* profile = command->add_flag(
      "--profile", options->profile,
      "Show the share of each function on each side, and instructions per message");
  profile->option_text(" ");
  CLI::Option* json =
      add("--json", options->json, "FILE",
          "Write the results to this file after every run; 'verbena report' reads them");
  tool.takes_path[json] = true;
  CLI::Option* resume = command->add_flag(
      "--resume", options->resume,
      "After an interruption, measure only what the --json file lacks of this plan");
  resume->option_text(" ")->needs(json);
  CLI::Option* experiment =
      add("--experiment", options->experiment, "NAME|FILE",
          "Measure a figure of the papers, by name, or an experiment file; other "
          "options override it");
  experiment->excludes(topology);
  tool.takes_path[experiment] = true;
  tool.choices[experiment] = experiment_names();
  CLI::Option* limit_nodes =
      add("--limit-nodes", options->limit_nodes, "N", "Use at most N nodes of either role");
  CLI::Option* limit_threads = add("--limit-threads", options->limit_threads, "N",
                                   "Use at most N threads of either role per node");
  add("--port", options->port, "N",
      fmt::format("TCP port of the control connection (two hosts: {}; else any)", kDefaultPort));
  CLI::Option* listen_option = add("--listen", options->listen, "[ADDRESS]",
                                   "Two hosts: be the responder and wait here for the other side");
  listen_option->expected(0, 1);
  CLI::Option* connect = add("--connect", options->connect, "HOST",
                             "Two hosts: be the requester; the other side listens there");
  CLI::Option* secret =
      add("--secret-file", options->secret_file, "FILE",
          "Several hosts: a file of mode 0600 with the secret that all sides share");
  tool.takes_path[secret] = true;
  not_for_listeners.insert(not_for_listeners.end(), {connect, verify, profile, json, resume,
                                                     experiment, limit_nodes, limit_threads});
  for (CLI::Option* flag : add_job_flags(*command, options->job)) {
    flag->excludes(connect);
    not_for_listeners.push_back(flag);
  }
  for (CLI::Option* other : not_for_listeners) listen_option->excludes(other);
  listen_option->needs(secret);
  connect->needs(secret);
  command->footer(
      kBenchHelp +
      examples_text(
          {"verbena bench one-to-one --device soft0 --protocol write/write --request 64 --response "
           "64,...,4KiB --verify",
           "verbena bench one-to-one --protocol all --pending 1,16 --duration 100ms --json "
           "results.json",
           "verbena bench M:1 --nodes 2 --threads 2 --pending 16 --value 365 --duration 50ms",
           "verbena bench one-to-one --device sim:connectx6-hdr --variants 5 --runs 1"}));
  command->callback([&tool, command, options, listen_option] {
    // Of a workload below this command, that one's.
    if (!command->get_subcommands().empty()) return;
    tool.exit_code = listen_option->count() > 0 ? listen(*options) : measure_bench(tool, *options);
  });
}

}  // namespace verbena::cli
