#include "src/cli/run_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <utility>

#include "src/base/network_settings.h"
#include "src/cli/run_command.h"

namespace verbena::cli {
namespace {

constexpr RunOption kOptions[] = {
    {.name = "--fault",
     .variable = kFaultVariable,
     .placeholder = "FAULTS",
     .help =
         "Faults of soft0's network, by a comma: drop=P, a packet is lost with that probability; "
         "rnr=P, a receiver is not ready; delay=P:TIME, an operation takes up to so much longer; "
         "qp-error=P, a queue pair goes to the error state at an operation; kill-after=N or TIME, "
         "SIGKILL; seed=N, which of them",
     .check = [](std::string_view value) { return parse_fault_settings(value).status(); }},
    {.name = "--link",
     .variable = kLinkVariable,
     .placeholder = "LINK",
     .help = "What soft0's network costs: latency=TIME of one way (ns, us, ms or s), rate=BITS per "
             "second and direction of the process's port (kbps, Mbps, Gbps or Tbps)",
     .check = [](std::string_view value) { return parse_link_settings(value).status(); }},
};

Status wrong_option(const std::string& why) {
  return {StatusCode::kInvalidArgument, "run: " + why};
}

// An option's value: behind '=', or the next argument.
Status take_option(const RunOption& option, std::vector<std::string>& arguments) {
  const size_t equals = arguments[0].find('=');
  const bool joined = equals != std::string::npos;
  if (!joined && arguments.size() < 2) {
    return wrong_option(fmt::format("{} needs a value; see 'verbena run --help'", option.name));
  }
  const std::string value = joined ? arguments[0].substr(equals + 1) : arguments[1];
  arguments.erase(arguments.begin(), arguments.begin() + (joined ? 1 : 2));
  if (const Status status = option.check(value); !status.ok()) {
    return wrong_option(fmt::format("{} {}", option.name, status.message()));
  }
  return set_environment(option.variable, value);
}

Status check_environment(const RunOption& option) {
  const char* const value = std::getenv(option.variable);
  if (value == nullptr) return {};
  const Status status = option.check(value);
  return status.ok() ? status
                     : wrong_option(fmt::format("{}: {}", option.variable, status.message()));
}

}  // namespace

std::span<const RunOption> run_options() { return kOptions; }

Status take_run_options(std::vector<std::string>& arguments) {
  std::set<std::string_view> given;
  while (!arguments.empty()) {
    const std::string name = arguments[0].substr(0, arguments[0].find('='));
    const auto* const option =
        std::find_if(std::begin(kOptions), std::end(kOptions),
                     [&name](const RunOption& known) { return name == known.name; });
    if (option == std::end(kOptions)) break;
    if (!given.insert(option->name).second) {
      return wrong_option(fmt::format("{} is given twice; separate its parts by commas", name));
    }
    VERBENA_RETURN_IF_ERROR(take_option(*option, arguments));
  }
  if (!arguments.empty() && arguments[0] == "--") {
    arguments.erase(arguments.begin());
  } else if (!arguments.empty() && arguments[0].starts_with('-')) {
    return wrong_option(
        fmt::format("there is no option '{}'; see 'verbena run --help'", arguments[0]));
  }
  for (const RunOption& option : kOptions) {
    if (!given.contains(option.name)) VERBENA_RETURN_IF_ERROR(check_environment(option));
  }
  return {};
}

}  // namespace verbena::cli
