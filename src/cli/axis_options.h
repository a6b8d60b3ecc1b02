// The options that say what is measured: a topology, a device, and a value or a list on each axis.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "src/bench/experiment/workload.h"
#include "src/cli/tool.h"
#include "verbena/status.h"

namespace verbena::cli {

// As typed, by the axis' name.
using AxisTexts = std::map<std::string_view, std::string>;

CLI::Option* add_topology(Tool& tool, CLI::App& command, std::string& topology);
// An option per axis of the workload, which leaves in `texts` what was typed; `texts` must outlive
// the command. With Values::kOne, help and completion offer no lists.
enum class Values : uint8_t { kLists, kOne };
std::vector<CLI::Option*> add_axis_options(Tool& tool, CLI::App& command,
                                           const bench::Workload& workload, AxisTexts& texts,
                                           Values values = Values::kLists);
// One of them.
CLI::Option* add_axis_option(Tool& tool, CLI::App& command, const bench::Axis& axis,
                             AxisTexts& texts, Values values);
// --device, which has to be a simulated one.
void add_simulated_device(Tool& tool, CLI::App& command, std::string& device);
Status check_simulated_device(const std::string& device);
// "sim:NAME" for each profile that is installed.
std::vector<std::string> simulated_devices();

}  // namespace verbena::cli
