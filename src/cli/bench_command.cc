// `verbena bench one-to-one`: protocols measured against each other between two processes.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/bench/result_file.h"
#include "src/bench/size_list.h"
#include "src/cli/commands.h"
#include "src/cli/experiment.h"
#include "src/cli/tool.h"
#include "verbena/rpc.h"

namespace verbena::cli {

namespace {

constexpr uint64_t kMaxRuns = 1000;
constexpr uint64_t kMaxRequests = 1'000'000'000'000;
// A run that is limited by its requests ends after a day all the same.
constexpr uint64_t kDayNs = 86'400'000'000'000;

constexpr const char* kHelp =
    "Sizes: a number, B, KiB, MiB or GiB behind it; lists with commas; \"64,…,4MiB\" (or \"...\") "
    "takes\n"
    "every power of two between. A bench measures all combinations; protocols take turns, run by "
    "run,\n"
    "so that they are compared under the same conditions.\n\n"
    "Latency: from just before a request is posted until its response is taken, in a closed loop: "
    "a\n"
    "slot's next request is posted when its response came. Waiting behind other pending requests "
    "is\n"
    "included. Queueing in front of the loop, as in a system that goes on sending while responses "
    "are\n"
    "late (coordinated omission), cannot occur here and is not measured. READ sends no request: "
    "its\n"
    "request size is only there for comparison.\n\n"
    "CPU: instructions per message where the machine counts them, else TSC cycles, of the polls "
    "that\n"
    "found a message; handler, posting and on soft0 the copying are included, idle polling is "
    "not.\n\n"
    "Two hosts: --listen on one, --connect HOST on the other, with the same --secret-file, which\n"
    "'(umask 077; openssl rand -hex 32 > job.secret)' makes.\n\n"
    "Exit code: 0; 1 something failed (finished points are kept); 2 wrong usage; 130 Ctrl-C.\n\n";

struct BenchOptions {
  std::string device = "soft0";
  std::string protocols = "all";
  std::string marks = "last-bit";
  std::string request = "64";
  std::string response = "64";
  std::string pending = "1";
  std::string runs = "3";
  std::string requests;
  std::string duration = "300ms";
  std::string json;
  bool verify = false;
  std::string port;
  std::string listen;
  std::string connect;
  std::string secret_file;
};

// "a,b" or "all".
template <typename T, typename Parse>
Result<std::vector<T>> parse_names(std::string_view text, std::span<const T> all, Parse&& parse) {
  if (text == "all") return std::vector<T>(all.begin(), all.end());
  std::vector<T> values;
  for (std::string_view rest = text;;) {
    const size_t comma = rest.find(',');
    Result<T> value = parse(rest.substr(0, comma));
    if (!value.ok()) {
      return Status(value.status().code(), value.status().message() + " and all");
    }
    if (std::find(values.begin(), values.end(), *value) == values.end()) values.push_back(*value);
    if (comma == std::string_view::npos) return values;
    rest.remove_prefix(comma + 1);
  }
}

Result<std::vector<uint32_t>> narrow(Result<std::vector<uint64_t>> list) {
  VERBENA_RETURN_IF_ERROR(list.status());
  return std::vector<uint32_t>(list->begin(), list->end());
}

Result<uint64_t> parse_one(const std::string& text, bench::ListLimits limits) {
  limits.single = true;
  VERBENA_ASSIGN_OR_RETURN(const std::vector<uint64_t> list, bench::parse_count_list(text, limits));
  return list[0];
}

Result<uint16_t> parse_port(const std::string& text) {
  VERBENA_ASSIGN_OR_RETURN(const uint64_t port,
                           parse_one(text, {.what = "port", .min = 0, .max = 65535}));
  return static_cast<uint16_t>(port);
}

Result<bench::Plan> parse_plan(const BenchOptions& options) {
  bench::Plan plan;
  VERBENA_ASSIGN_OR_RETURN(plan.protocols,
                           parse_names(options.protocols, all_protocols(), parse_protocol));
  VERBENA_ASSIGN_OR_RETURN(plan.layouts,
                           parse_names(options.marks, all_mark_layouts(), parse_mark_layout));
  VERBENA_ASSIGN_OR_RETURN(
      plan.request_bytes,
      narrow(bench::parse_size_list(options.request,
                                    {.what = "request size", .min = 1, .max = kMaxMessageBytes})));
  VERBENA_ASSIGN_OR_RETURN(
      plan.response_bytes,
      narrow(bench::parse_size_list(options.response,
                                    {.what = "response size", .min = 1, .max = kMaxMessageBytes})));
  VERBENA_ASSIGN_OR_RETURN(
      plan.pending,
      narrow(bench::parse_count_list(
          options.pending, {.what = "number of pending requests", .min = 1, .max = kMaxPending})));
  VERBENA_ASSIGN_OR_RETURN(
      const uint64_t runs,
      parse_one(options.runs, {.what = "number of runs", .min = 1, .max = kMaxRuns}));
  plan.runs = static_cast<uint32_t>(runs);
  plan.run.verify = options.verify;
  if (options.requests.empty()) {
    VERBENA_ASSIGN_OR_RETURN(plan.run.length.duration_ns,
                             bench::parse_duration_ns(options.duration));
  } else {
    VERBENA_ASSIGN_OR_RETURN(
        plan.run.length.requests,
        parse_one(options.requests, {.what = "number of requests", .min = 1, .max = kMaxRequests}));
    plan.run.length.duration_ns = kDayNs;
  }
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

int measure(const Tool& tool, const BenchOptions& options) {
  Result<bench::Plan> plan = parse_plan(options);
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
  experiment.port = *port;
  experiment.host = options.connect;
  experiment.secret_file = options.secret_file;
  return run_experiment(experiment);
}

template <typename T, typename Name>
std::vector<std::string> names_and_all(std::span<const T> values, Name&& name) {
  std::vector<std::string> names;
  for (const T value : values) names.emplace_back(name(value));
  names.emplace_back("all");
  return names;
}

}  // namespace

void add_bench_command(Tool& tool) {
  CLI::App* bench = tool.app.add_subcommand("bench", "Measure protocols side by side");
  bench->require_subcommand(1);
  bench->footer("'verbena bench one-to-one --help' says what each number includes.\n\n" +
                examples_text({"verbena bench one-to-one --protocol all"}));

  CLI::App* command = bench->add_subcommand(
      "one-to-one", "One requester and one responder: latency, rate, bandwidth and CPU cost");
  const auto options = std::make_shared<BenchOptions>();
  const auto add = [&](const std::string& name, std::string& value, const std::string& text,
                       const std::string& help) {
    return command->add_option(name, value, help)->option_text(text);
  };
  CLI::Option* device =
      add("--device", options->device, "NAME (soft0)", "The device; 'verbena devices' lists them");
  tool.choices[device] = {"soft0"};
  CLI::Option* protocol = add("--protocol", options->protocols, "LIST (all)",
                              "send/send, send/write, write/send, write/write, read, or all");
  tool.choices[protocol] = names_and_all(all_protocols(), protocol_name);
  CLI::Option* request = add("--request", options->request, "SIZES (64)", "Bytes per request");
  CLI::Option* response = add("--response", options->response, "SIZES (64)", "Bytes per response");
  CLI::Option* pending =
      add("--pending", options->pending, "COUNTS (1)", "Requests that wait for a response at once");
  CLI::Option* mark = add("--mark", options->marks, "LIST (last-bit)",
                          "How the receiver of a WRITE recognizes a message: last-bit, "
                          "length-markers, head-tail, immediate, or all");
  tool.choices[mark] = names_and_all(all_mark_layouts(), mark_layout_name);
  CLI::Option* runs = add("--runs", options->runs, "N (3)", "How often each point is measured");
  CLI::Option* duration =
      add("--duration", options->duration, "TIME (300ms)", "How long each run lasts");
  CLI::Option* requests = add("--requests", options->requests, "N",
                              "How many requests each run has, instead of a time");
  requests->excludes(duration);
  CLI::Option* verify = command->add_flag(
      "--verify", options->verify,
      "Check every byte of the measured requests and responses; slower. Without it "
      "only the warm-up is checked");
  verify->option_text(" ");
  CLI::Option* json = add("--json", options->json, "FILE",
                          "Write the results there, after every run; 'verbena report' reads them");
  tool.takes_path[json] = true;
  add("--port", options->port, "N",
      fmt::format("TCP port of the control connection (two hosts: {}; else any)", kDefaultPort));
  CLI::Option* listen_option = add("--listen", options->listen, "[ADDRESS]",
                                   "Two hosts: be the responder and wait here for the other side");
  listen_option->expected(0, 1);
  CLI::Option* connect = add("--connect", options->connect, "HOST",
                             "Two hosts: be the requester; the other side listens there");
  CLI::Option* secret = add("--secret-file", options->secret_file, "FILE",
                            "Two hosts: what both sides know and nobody else, mode 0600");
  tool.takes_path[secret] = true;
  for (CLI::Option* other : {connect, protocol, request, response, pending, mark, runs, duration,
                             requests, verify, json}) {
    listen_option->excludes(other);
  }
  listen_option->needs(secret);
  connect->needs(secret);
  command->footer(
      kHelp +
      examples_text(
          {"verbena bench one-to-one --device soft0 --protocol write/write --request 64 --response "
           "64,...,4KiB --verify",
           "verbena bench one-to-one --protocol all --pending 1,16 --duration 100ms --json "
           "results.json"}));
  command->callback([&tool, options, listen_option] {
    tool.exit_code = listen_option->count() > 0 ? listen(*options) : measure(tool, *options);
  });
}

}  // namespace verbena::cli
