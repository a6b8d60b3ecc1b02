// `verbena devices`: real and software devices with the capabilities that decide between designs.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/base/output.h"
#include "src/bench/experiment/size_list.h"
#include "src/bench/result/text_table.h"
#include "src/cli/commands.h"
#include "src/cli/tool.h"
#include "verbena/device.h"

namespace verbena::cli {

namespace {

const char* kind_name(DeviceKind kind) {
  if (kind == DeviceKind::kSimulated) return "simulated";
  return kind == DeviceKind::kSoft ? "software" : "hardware";
}

const char* yes_no(bool value) { return value ? "yes" : "no"; }

nlohmann::json device_json(const DeviceInfo& info) {
  nlohmann::json device = {{"name", info.name}, {"kind", kind_name(info.kind)}};
  if (!info.unavailable.empty()) {
    device["unavailable"] = info.unavailable;
    return device;
  }
  device.update({{"link_layer", info.link_layer},
                 {"port", info.port},
                 {"port_state", info.port_state},
                 {"active_mtu_bytes", info.active_mtu_bytes},
                 {"lid", info.lid},
                 {"gid_index", info.gid_index},
                 {"max_queue_pairs", info.max_queue_pairs},
                 {"max_queue_pair_wrs", info.max_queue_pair_wrs},
                 {"max_completion_queues", info.max_completion_queues},
                 {"max_cqes", info.max_cqes},
                 {"max_shared_receive_queues", info.max_shared_receive_queues},
                 {"max_shared_receive_queue_wrs", info.max_shared_receive_queue_wrs},
                 {"max_memory_regions", info.max_memory_regions},
                 {"max_memory_region_bytes", info.max_memory_region_bytes},
                 {"max_sges", info.max_sges},
                 {"max_inline_bytes", info.max_inline_bytes},
                 {"max_outstanding_reads", info.max_outstanding_reads},
                 {"atomics", info.atomics},
                 {"writes_in_order", info.writes_in_order}});
  return device;
}

std::string device_table(const std::vector<DeviceInfo>& devices) {
  std::vector<std::vector<std::string>> rows = {{"device", "kind", "link", "port", "MTU", "inline",
                                                 "SGEs", "queue pairs", "WRs each", "READs each",
                                                 "SRQs", "atomics", "WRITE in order"}};
  for (const DeviceInfo& info : devices) {
    if (!info.unavailable.empty()) {
      rows.push_back({info.name, kind_name(info.kind), "cannot be used: " + info.unavailable});
      continue;
    }
    rows.push_back(
        {info.name, kind_name(info.kind), info.link_layer, info.port_state,
         bench::size_text(info.active_mtu_bytes), fmt::format("{} B", info.max_inline_bytes),
         fmt::format("{}", info.max_sges), fmt::format("{}", info.max_queue_pairs),
         fmt::format("{}", info.max_queue_pair_wrs), fmt::format("{}", info.max_outstanding_reads),
         fmt::format("{}", info.max_shared_receive_queues), yes_no(info.atomics),
         yes_no(info.writes_in_order)});
  }
  return bench::text_table(rows, 4);
}

}  // namespace

void add_devices_command(Tool& tool) {
  CLI::App* command =
      tool.app.add_subcommand("devices", "List real and software devices and what they can do");
  const auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print a JSON list instead of a table");
  command->footer(
      "inline: largest message that is sent inline, in its WQE. WRITE in order: the last "
      "byte\n"
      "of a WRITE is guaranteed to land last, so a receiver may poll memory for it.\n\n" +
      examples_text({"verbena devices", "verbena devices --json"}));
  command->callback([json] {
    const std::vector<DeviceInfo> devices = Device::list();
    if (*json) {
      nlohmann::json list = nlohmann::json::array();
      for (const DeviceInfo& info : devices) list.push_back(device_json(info));
      print_output("{}\n", list.dump(1, ' ', false, nlohmann::json::error_handler_t::replace));
    } else {
      print_output("{}", device_table(devices));
    }
  });
}

}  // namespace verbena::cli
