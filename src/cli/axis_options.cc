#include "src/cli/axis_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "src/bench/experiment/axis.h"
#include "src/device/sim/profile_files.h"
#include "src/device/sim/rnic_profile.h"

namespace verbena::cli {

namespace {

constexpr std::string_view kAll = "all";

// "COUNTS" is COUNT, "LIST" is NAME.
std::string shape_of_one(std::string_view shape) {
  if (shape == "LIST") return "NAME";
  if (shape.ends_with('S')) shape.remove_suffix(1);
  return std::string(shape);
}

// "shared, per-connection, or all" is "shared, or per-connection".
std::string help_of_one(const bench::Axis& axis) {
  constexpr std::string_view kOrAll = ", or all";
  std::string help(axis.help);
  const size_t end = help.find(kOrAll);
  if (end == std::string::npos) return help;
  help.erase(end, kOrAll.size());
  const size_t last = help.rfind(", ", end - 1);
  if (last != std::string::npos) help.insert(last + 2, "or ");
  return help;
}

}  // namespace

CLI::Option* add_topology(Tool& tool, CLI::App& command, std::string& topology) {
  CLI::Option* option =
      command.add_option("TOPOLOGY", topology, "one-to-one, N-to-1 (or M:1), 1:M, N-to-M or M:M");
  option->option_text("");
  tool.choices[option] = {"one-to-one", "N-to-1", "M:1", "1:M", "N-to-M", "M:M"};
  return option;
}

CLI::Option* add_axis_option(Tool& tool, CLI::App& command, const bench::Axis& axis,
                             AxisTexts& texts, Values values) {
  std::string names = fmt::format("--{}", axis.name);
  if (!axis.alias.empty()) names += fmt::format(",--{}", axis.alias);
  CLI::Option* option = command.add_option_function<std::string>(
      names, [&texts, &axis](const std::string& text) { texts[axis.name] = text; },
      values == Values::kOne ? help_of_one(axis) : std::string(axis.help));
  const std::string shape =
      values == Values::kOne ? shape_of_one(axis.shape) : std::string(axis.shape);
  option->option_text(axis.standard.empty() ? shape : fmt::format("{} ({})", shape, axis.standard));
  auto choices = axis.choices();
  if (values == Values::kOne) std::erase(choices, kAll);
  if (!choices.empty()) tool.choices[option] = choices;
  return option;
}

std::vector<CLI::Option*> add_axis_options(Tool& tool, CLI::App& command,
                                           const bench::Workload& workload, AxisTexts& texts,
                                           Values values) {
  std::vector<CLI::Option*> options;
  for (const bench::Axis& axis : workload.traits().axes) {
    options.push_back(add_axis_option(tool, command, axis, texts, values));
  }
  return options;
}

void add_simulated_device(Tool& tool, CLI::App& command, std::string& device) {
  CLI::Option* option = command.add_option("--device", device, "The simulated RNIC");
  option->option_text("sim:PROFILE");
  tool.choices[option] = simulated_devices();
}

Status check_simulated_device(const std::string& device) {
  const std::string known = fmt::format("{}", fmt::join(simulated_devices(), ", "));
  if (device.empty()) {
    return {StatusCode::kInvalidArgument, fmt::format("which --device? there are {}", known)};
  }
  if (device.starts_with(sim::kDevicePrefix)) return Status::ok_status();
  return {StatusCode::kInvalidArgument,
          fmt::format("'{}' is not simulated; give one of {}", device, known)};
}

std::vector<std::string> simulated_devices() {
  std::vector<std::string> devices;
  for (const std::string& name : sim::profile_names()) {
    devices.push_back(std::string(sim::kDevicePrefix) + name);
  }
  return devices;
}

}  // namespace verbena::cli
