// `verbena explain`: what each design would cost on a device, which cannot be used, and why.
#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/output.h"
#include "src/bench/experiment/size_list.h"
#include "src/bench/result/text_table.h"
#include "src/bench/run/simulated_nodes.h"
#include "src/cli/axis_options.h"
#include "src/cli/commands.h"
#include "src/cli/tool.h"
#include "src/device/sim/rnic_profile.h"
#include "verbena/design_estimate.h"
#include "verbena/device.h"
#include "verbena/message.h"

namespace verbena::cli {

namespace {

constexpr const char* kHelp =
    "Estimates every design before anything runs, the cheapest first. A design has counts (work\n"
    "requests, completions, receives, lines to poll, bytes); the device says what each takes.\n"
    "  time        between two requests of all requesters together, set by the busiest part\n"
    "  round trip  of a request that meets no other one\n"
    "  CPU         of the requesting and of the responding thread, per request\n"
    "  memory      registered by a requesting thread and by the responder\n"
    "For a simulated RNIC these are times. Of other devices the steps are not known one by one:\n"
    "x1.50 is one and a half times the time of the cheapest design that runs a handler, with the\n"
    "steps of a typical RNIC (soft0: of a software one). With READ no handler runs, so\n"
    "Protocol::kAutomatic never takes it.\n"
    "--message shows instead what a tagged message of that size takes by each protocol, from "
    "memory\n"
    "that is used for the first time and from memory that is used again.\n"
    "Topologies: M:1 is --requesters M, 1:M is --responders M, N-to-M both. 'verbena bench'\n"
    "measures; 'verbena sim explain' shows where the time of one message goes.\n\n";

struct Options {
  std::string device = "soft0";
  std::string request = "64";
  std::string response = "64";
  std::string inline_bytes;
  std::string message;
  DesignWorkload workload;
  bool json = false;
};

Result<uint32_t> parse_size(std::string_view what, const std::string& text, uint64_t most) {
  VERBENA_ASSIGN_OR_RETURN(
      const std::vector<uint64_t> sizes,
      bench::parse_size_list(text, {.what = what, .max = most, .single = true}));
  return static_cast<uint32_t>(sizes.front());
}

Result<DesignWorkload> parse_workload(const Options& options) {
  DesignWorkload workload = options.workload;
  VERBENA_ASSIGN_OR_RETURN(workload.request_bytes,
                           parse_size("request size", options.request, kMaxMessageBytes));
  VERBENA_ASSIGN_OR_RETURN(workload.response_bytes,
                           parse_size("response size", options.response, kMaxMessageBytes));
  if (!options.inline_bytes.empty()) {
    VERBENA_ASSIGN_OR_RETURN(workload.inline_bytes,
                             parse_size("inline size", options.inline_bytes, kMaxMessageBytes));
  }
  return workload;
}

// A simulated RNIC is there in virtual time only.
Result<DeviceInfo> device_info(const std::string& name) {
  if (name.starts_with(sim::kDevicePrefix)) {
    bench::SimulatedNodes nodes(bench::simulation_seed(), /*copy_all=*/true);
    VERBENA_RETURN_IF_ERROR(nodes.add(name, 1));
    return nodes.info();
  }
  VERBENA_ASSIGN_OR_RETURN(const Device device, Device::open(name));
  return device.info();
}

const char* model_name(const DesignEstimate& design) {
  return design.dispatcher ? "dispatcher" : "private";
}
const char* mark_name(const DesignEstimate& design) {
  return uses_mark_layout(design.protocol) ? mark_layout_name(design.layout) : "-";
}
const char* receives_name(const DesignEstimate& design) {
  return design.takes_receives ? receive_queues_name(design.receive_queues) : "-";
}

nlohmann::json steps_json(const StepCounts& steps) {
  return {{"work_requests", steps.work_requests}, {"doorbells", steps.doorbells},
          {"receives", steps.receives},           {"completions", steps.completions},
          {"polled_lines", steps.polled_lines},   {"cleared_bytes", steps.cleared_bytes},
          {"device_reads", steps.device_reads}};
}

nlohmann::json design_json(const DesignEstimate& design) {
  nlohmann::json row = {{"protocol", protocol_name(design.protocol)},
                        {"transport", transport_name(design.transport)},
                        {"mark", mark_name(design)},
                        {"receive_queues", receives_name(design)},
                        {"model", model_name(design)},
                        {"usable", design.usable},
                        {"why", design.why}};
  if (!design.usable) return row;
  row.update({{"times", design.of_this_device ? "modelled" : "proportions only"},
              {"interval_ns", design.interval_ns},
              {"round_trip_ns", design.round_trip_ns},
              {"requester", steps_json(design.requester)},
              {"responder", steps_json(design.responder)},
              {"wire_messages", design.wire_messages},
              {"wire_bytes", design.wire_bytes}});
  row["requester"].update(
      {{"thread_ns", design.requester_ns}, {"memory_bytes", design.requester_memory_bytes}});
  row["responder"].update(
      {{"thread_ns", design.responder_ns}, {"memory_bytes", design.responder_memory_bytes}});
  return row;
}

// What times are given in proportion to. A READ without a thread at the responder is no measure for
// the others.
const DesignEstimate& comparable_best(const std::vector<DesignEstimate>& designs) {
  for (const DesignEstimate& design : designs) {
    if (design.usable && design.protocol != Protocol::kRead) return design;
  }
  return designs.front();
}

std::string design_table(const std::vector<DesignEstimate>& designs, bool with_model) {
  const DesignEstimate& best = comparable_best(designs);
  const auto time = [&best](double ns) {
    return best.of_this_device ? bench::time_text(ns)
                               : fmt::format("x{:.2f}", ns / best.interval_ns);
  };
  std::vector<std::vector<std::string>> rows = {{"protocol", "transport", "mark", "receives",
                                                 "time", "round trip", "CPU req.", "CPU resp.",
                                                 "memory req.", "memory resp."}};
  if (with_model) rows.front().insert(rows.front().begin() + 4, "model");
  for (const DesignEstimate& design : designs) {
    std::vector<std::string>& row = rows.emplace_back();
    row = {protocol_name(design.protocol), transport_name(design.transport), mark_name(design),
           receives_name(design)};
    if (with_model) row.push_back(model_name(design));
    if (!design.usable) {
      row.push_back("cannot be used: " + design.why);
      continue;
    }
    row.insert(row.end(),
               {time(design.interval_ns), time(design.round_trip_ns), time(design.requester_ns),
                time(design.responder_ns), bench::size_text(design.requester_memory_bytes),
                bench::size_text(design.responder_memory_bytes)});
  }
  // What is said of a design is a sentence, and no column is to be as wide as the longest one.
  std::istringstream lines(bench::text_table(rows, with_model ? 5 : 4));
  std::string line;
  std::getline(lines, line);
  std::string text = line + "  why\n";
  for (const DesignEstimate& design : designs) {
    std::getline(lines, line);
    text += line + (design.usable ? "  " + design.why : "") + "\n";
  }
  return text;
}

nlohmann::json message_json(const MessageEstimate& one) {
  nlohmann::json row = {{"protocol", message_protocol_name(one.protocol)},
                        {"usable", one.usable},
                        {"why", one.why},
                        {"times", one.of_this_device ? "modelled" : "proportions only"},
                        {"first_ns", one.first_ns},
                        {"again_ns", one.again_ns}};
  if (one.protocol == MessageProtocol::kEager) row["channel"] = one.by_ring ? "ring" : "SEND";
  return row;
}

std::string message_table(const std::vector<MessageEstimate>& estimates) {
  const auto time = [&](double ns) {
    return estimates.front().of_this_device
               ? bench::time_text(ns)
               : fmt::format("x{:.2f}", ns / estimates.front().again_ns);
  };
  std::vector<std::vector<std::string>> rows = {{"protocol", "channel", "used again", "first use"}};
  for (const MessageEstimate& one : estimates) {
    const char* channel = one.protocol != MessageProtocol::kEager ? "-"
                          : one.by_ring                           ? "ring"
                                                                  : "SEND";
    rows.push_back({message_protocol_name(one.protocol), channel,
                    one.usable ? time(one.again_ns) : "-", one.usable ? time(one.first_ns) : "-"});
  }
  std::istringstream lines(bench::text_table(rows, 2));
  std::string line;
  std::getline(lines, line);
  std::string text = line + "  why\n";
  for (const MessageEstimate& one : estimates) {
    std::getline(lines, line);
    text += line + "  " + (one.usable ? "" : "cannot be used: ") + one.why + "\n";
  }
  return text;
}

int explain_tagged_message(const Options& options) {
  const Result<uint32_t> bytes = parse_size("message size", options.message, kMaxMessageBytes);
  if (!bytes.ok()) return report_error(bytes.status());
  const Result<DeviceInfo> device = device_info(options.device);
  if (!device.ok()) return report_error(device.status());
  const Result<std::vector<MessageEstimate>> estimates = estimate_message(*device, {}, *bytes);
  if (!estimates.ok()) return report_error(estimates.status());
  if (options.json) {
    nlohmann::json list = nlohmann::json::array();
    for (const MessageEstimate& one : *estimates) list.push_back(message_json(one));
    print_output("{}\n", list.dump(1, ' ', false, nlohmann::json::error_handler_t::replace));
    return 0;
  }
  print_output("{}", message_table(*estimates));
  if (!estimates->front().of_this_device) {
    print_output("x1.00 is the time of the first one; proportions are estimated, not measured\n");
  }
  return 0;
}

int explain_designs(const Options& options) {
  if (!options.message.empty()) return explain_tagged_message(options);
  const Result<DesignWorkload> workload = parse_workload(options);
  if (!workload.ok()) return report_error(workload.status());
  const Result<DeviceInfo> device = device_info(options.device);
  if (!device.ok()) return report_error(device.status());
  const std::vector<DesignEstimate> designs = estimate_designs(*device, *workload);
  if (options.json) {
    nlohmann::json list = nlohmann::json::array();
    for (const DesignEstimate& design : designs) list.push_back(design_json(design));
    print_output("{}\n", list.dump(1, ' ', false, nlohmann::json::error_handler_t::replace));
    return 0;
  }
  print_output("{}", design_table(designs, workload->workers > 1));
  if (designs.front().usable && !designs.front().of_this_device) {
    print_output(
        "x1.00 is the time of the cheapest design that runs a handler; proportions are estimated, "
        "not measured\n");
  }
  return 0;
}

}  // namespace

void add_explain_command(Tool& tool) {
  CLI::App* command =
      tool.app.add_subcommand("explain", "Show which design suits a device and a load, and why");
  const auto options = std::make_shared<Options>();
  CLI::Option* device =
      command->add_option("--device", options->device, "The device; 'verbena devices' lists them");
  device->option_text("NAME (soft0)");
  tool.choices[device] = {"soft0"};
  for (const std::string& name : simulated_devices()) tool.choices[device].push_back(name);
  command->add_option("--request", options->request, "Bytes per request")->option_text("SIZE (64)");
  command->add_option("--response", options->response, "Bytes per response")
      ->option_text("SIZE (64)");
  command
      ->add_option("--message", options->message, "Explain a tagged message of that size instead")
      ->option_text("SIZE");
  const auto count = [&](const char* name, uint32_t* value, const char* what, uint32_t least,
                         uint32_t most) {
    command->add_option(name, *value, what)
        ->check(CLI::Range(least, most))
        ->option_text(fmt::format("N ({})", *value));
  };
  DesignWorkload& workload = options->workload;
  count("--pending", &workload.pending, "Pending requests of a thread at one responder", 1,
        kMaxPending);
  count("--requesters", &workload.requesters, "Nodes that send to the same responder", 1,
        kMaxConnections);
  count("--workers", &workload.workers, "Threads of each; above 1, dispatchers are compared too", 1,
        kMaxConnections);
  count("--responders", &workload.responders, "Responders that each thread sends to", 1,
        kMaxConnections);
  count("--active", &workload.active,
        "Connections of a responder that have a request waiting, as a mean; 0: all", 0,
        kMaxConnections);
  command
      ->add_option("--inline", options->inline_bytes,
                   "Messages up to this size are sent inline, in their WQE")
      ->option_text("SIZE (device)");
  count("--signal-interval", &workload.signal_interval,
        "Every n-th work request is signaled; 0: a quarter of the send queue", 0, 16384);
  count("--post-batch", &workload.post_batch, "Work requests per doorbell", 1, 256);
  command->add_flag("--json", options->json, "Print a JSON list, with the counts of each step");
  command->footer(
      kHelp + examples_text(
                  {"verbena explain",
                   "verbena explain --device sim:connectx5-edr --requesters 40 --response 4KiB",
                   "verbena explain --device sim:connectx3-fdr --responders 8 --pending 16 --json",
                   "verbena explain --message 64KiB"}));
  command->callback([&tool, options] { tool.exit_code = explain_designs(*options); });
}

}  // namespace verbena::cli
