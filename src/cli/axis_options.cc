#include "src/cli/axis_options.h"

#include <fmt/format.h>

#include "src/bench/axis.h"
#include "src/device/sim/profile.h"

namespace verbena::cli {

CLI::Option* add_topology(Tool& tool, CLI::App& command, std::string& topology) {
  CLI::Option* option =
      command.add_option("TOPOLOGY", topology, "one-to-one, N-to-1 (or M:1), 1:M, N-to-M or M:M");
  option->option_text("");
  tool.choices[option] = {"one-to-one", "N-to-1", "M:1", "1:M", "N-to-M", "M:M"};
  return option;
}

std::vector<CLI::Option*> add_axis_options(Tool& tool, CLI::App& command, bench::Subject subject,
                                           AxisTexts& texts) {
  std::vector<CLI::Option*> options;
  for (const bench::Axis& axis : bench::axes()) {
    if (!axis.belongs_to(subject)) continue;
    std::string names = fmt::format("--{}", axis.name);
    if (!axis.alias.empty()) names += fmt::format(",--{}", axis.alias);
    CLI::Option* option = command.add_option_function<std::string>(
        names, [&texts, &axis](const std::string& text) { texts[axis.name] = text; },
        std::string(axis.help));
    option->option_text(axis.standard.empty() ? std::string(axis.shape)
                                              : fmt::format("{} ({})", axis.shape, axis.standard));
    if (const auto choices = axis.choices(); !choices.empty()) tool.choices[option] = choices;
    options.push_back(option);
  }
  return options;
}

std::vector<std::string> simulated_devices() {
  std::vector<std::string> devices;
  for (const std::string& name : sim::profile_names()) {
    devices.push_back(std::string(sim::kDevicePrefix) + name);
  }
  return devices;
}

}  // namespace verbena::cli
