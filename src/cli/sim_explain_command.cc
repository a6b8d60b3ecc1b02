// `verbena sim explain`: where the time of one message goes on a simulated RNIC.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/base/output.h"
#include "src/bench/experiment/plan.h"
#include "src/bench/experiment/size_list.h"
#include "src/bench/explain/explain_point.h"
#include "src/bench/explain/simulation_trace.h"
#include "src/bench/explain/waterfall.h"
#include "src/bench/request_response/request_response_settings.h"
#include "src/bench/request_response/request_response_workload.h"
#include "src/bench/result/model_evidence.h"
#include "src/bench/result/result_file.h"
#include "src/bench/result/text_table.h"
#include "src/bench/run/simulated_nodes.h"
#include "src/cli/axis_options.h"
#include "src/cli/sim_command.h"

namespace verbena::cli {

namespace {

// Long enough for a steady state; virtual time is not cheap.
constexpr uint64_t kDurationNs = 500'000;

constexpr const char* kExplainHelp =
    R"(Shows the way of one request and its response, from just before the post until the response is
taken: when each step begins, how long it takes, on which node and in which unit. Steps in brackets
are waits: for a unit that is busy, for an earlier step, or until a thread polls. The steps are
compared with the measured latency; the exit code is 1 if they do not add up to it.

--trace writes a file for ui.perfetto.dev or chrome://tracing. Nodes are its processes; threads,
buses, both sides of the RNIC and the network are its tracks; arrows join the steps of a message.

The commands below show for operations that are more than a request and its response, such as those
of the applications, how busy each unit of the nodes is, and so which one limits them.

)";

struct ExplainOptions {
  std::string topology;
  AxisTexts axes;
  std::string device;
  std::string quantile = "0.5";
  std::string duration;
  std::string trace;
};

Status invalid(std::string message) {
  return Status(StatusCode::kInvalidArgument, std::move(message));
}

Result<bench::Point> parse_point(const ExplainOptions& options) {
  if (options.topology.empty()) {
    return invalid(
        "which topology? there are one-to-one, N-to-1 (or M:1), 1:M, N-to-M and M:M; see 'verbena "
        "sim explain --help'");
  }
  VERBENA_ASSIGN_OR_RETURN(bench::Sweep sweep,
                           bench::Sweep::in(options.topology, bench::request_response_workload()));
  VERBENA_RETURN_IF_ERROR(sweep.set("protocol", "write/write"));
  for (const auto& [name, text] : options.axes) VERBENA_RETURN_IF_ERROR(sweep.set(name, text));
  bench::Plan plan;
  plan.sweeps.push_back(std::move(sweep));
  VERBENA_ASSIGN_OR_RETURN(const auto groups, bench::point_groups(plan));
  if (groups.size() != 1 || groups.front().size() != 1) {
    return invalid("one message is explained: give each option one value, not a list");
  }
  bench::SimulatedNodes nodes(bench::simulation_seed(), /*copy_all=*/true);
  VERBENA_RETURN_IF_ERROR(nodes.add(options.device, 1));
  VERBENA_RETURN_IF_ERROR(bench::check_points(groups, nodes.info()));
  return groups.front().front();
}

Result<double> parse_quantile(const std::string& text) {
  size_t used = 0;
  double value = -1;
  try {
    value = std::stod(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  if (used == text.size() && value >= 0 && value <= 1) return value;
  return invalid(
      fmt::format("'{}' is not a quantile; give a number from 0 to 1, such as 0.99", text));
}

std::string heading(const bench::Point& point, const ExplainOptions& options,
                    const bench::Explanation& explanation, double quantile) {
  std::string shape = bench::topology_name(point.topology);
  if (point.topology != bench::Topology::kOneToOne) {
    shape += fmt::format(" {}x{}", point.nodes, point.threads);
  }
  const bench::RequestResponseSettings& settings = bench::request_response_settings(point);
  return fmt::format(
      "{} on {}, {}, {} request, {} response, {} pending: {}, {} requests in {}\n"
      "The {:g} quantile of their latency: {}\n\n",
      protocol_name(settings.protocol), options.device, shape,
      bench::size_text(settings.request_bytes), bench::size_text(settings.response_bytes),
      point.pending, bench::rate_text(explanation.run.rate_per_s), explanation.messages,
      "the timed phase", quantile,
      bench::time_text(static_cast<double>(explanation.path.measured_ns)));
}

int explain_message(const ExplainOptions& options) {
  if (const Status status = check_simulated_device(options.device); !status.ok())
    return report_error(status);
  const Result<double> quantile = parse_quantile(options.quantile);
  if (!quantile.ok()) return report_error(quantile.status());
  const Result<bench::Point> point = parse_point(options);
  if (!point.ok()) return report_error(point.status());
  bench::RunLength length{.duration_ns = kDurationNs};
  if (!options.duration.empty()) {
    const Result<uint64_t> duration_ns = bench::parse_duration_ns(options.duration);
    if (!duration_ns.ok()) return report_error(duration_ns.status());
    length.duration_ns = *duration_ns;
  }
  if (!options.trace.empty()) {
    const Status writable = bench::check_writable(options.trace);
    if (!writable.ok()) return report_error(writable);
  }
  sim::Recorder recorder(bench::kMostRecordedSteps);
  const Result<bench::Explanation> explanation =
      bench::explain_point(options.device, *point, length, *quantile, &recorder);
  if (!explanation.ok()) return report_error(explanation.status());
  const bench::MessagePath& path = explanation->path;
  print_output("{}{}\n{}\n{}{}", heading(*point, options, *explanation, *quantile),
               bench::waterfall_text(path, recorder.threads()), bench::summary_text(path),
               bench::sum_text(path), bench::model_text(options.device));
  if (!options.trace.empty()) {
    const Status written = bench::write_json_file(
        options.trace,
        bench::simulation_trace(recorder, explanation->run.layout, explanation->chosen));
    if (!written.ok()) return report_error(written);
    print_output("Trace: {}; open it in ui.perfetto.dev\n", options.trace);
  }
  if (path.adds_up()) return 0;
  return report_error(Status(StatusCode::kUnavailable,
                             "the steps do not add up to the measured latency; what is missing is "
                             "listed as not explained"));
}

}  // namespace

void add_sim_explain_command(Tool& tool, CLI::App& sim) {
  CLI::App* command = sim.add_subcommand(
      "explain", "Show where the time of one message goes, or what limits a workload");
  const auto options = std::make_shared<ExplainOptions>();
  add_topology(tool, *command, options->topology);
  add_simulated_device(tool, *command, options->device);
  add_axis_options(tool, *command, bench::request_response_workload(), options->axes, Values::kOne);
  command->get_option("--protocol")->option_text("NAME (write/write)");
  command
      ->add_option("--quantile", options->quantile,
                   "Explain a message whose latency is this quantile of all; 0.5 is the median")
      ->option_text("Q (0.5)");
  command->add_option("--duration", options->duration, "How long the run lasts, in virtual time")
      ->option_text("TIME (500us)");
  CLI::Option* trace = command->add_option(
      "--trace", options->trace,
      "Write what happened around the message to this file, for a trace viewer");
  trace->option_text("FILE.json");
  tool.takes_path[trace] = true;
  command->footer(
      kExplainHelp +
      examples_text(
          {"verbena sim explain one-to-one --device sim:connectx3-fdr --protocol write/write",
           "verbena sim explain M:1 --nodes 4 --pending 8 --quantile 0.99 --device "
           "sim:connectx3-fdr --trace trace.json",
           "verbena sim explain hashtable --nodes 2,4,8,16 --device sim:connectx3-40g"}));
  add_sim_explain_workloads(tool, *command);
  command->callback([&tool, command, options] {
    if (command->get_subcommands().empty()) tool.exit_code = explain_message(*options);
  });
}

}  // namespace verbena::cli
