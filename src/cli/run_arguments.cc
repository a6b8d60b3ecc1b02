#include "src/cli/run_arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "src/base/device_settings.h"
#include "src/base/network_settings.h"
#include "src/base/private_file.h"
#include "src/cli/check_option.h"
#include "src/cli/run_command.h"
#include "src/device/check_options.h"

namespace verbena::cli {
namespace {

constexpr uint32_t kLeastSnapBytes = 64;
constexpr uint32_t kMostSnapBytes = 65535;

Status check_snap(std::string_view value) {
  uint32_t bytes = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), bytes);
  if (error == std::errc() && end == value.data() + value.size() && bytes >= kLeastSnapBytes &&
      bytes <= kMostSnapBytes) {
    return {};
  }
  return {StatusCode::kInvalidArgument,
          fmt::format("is '{}'; it can be {} to {} bytes", value, kLeastSnapBytes, kMostSnapBytes)};
}

Status check_file(std::string_view value) { return check_private_file(std::string(value)); }
Status empty_file(std::string_view value) { return prepare_private_file(std::string(value)); }

// The program may change its directory. In the name of the present one, "%p" is no number.
std::string whole_path_of(std::string_view value) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::current_path(error);
  if (error || folder.string().find("%p") != std::string::npos) return std::string(value);
  return (folder / value).string();
}

constexpr RunOption kOptions[] = {
    {.name = "--trace",
     .variable = "VERBENA_TRACE",
     .placeholder = "FILE",
     .help = "Write work requests, from post to completion, for ui.perfetto.dev; see below",
     .check = check_file,
     .prepare = empty_file,
     .variable_of = whole_path_of},
    {.name = "--pcap",
     .variable = "VERBENA_PCAP",
     .placeholder = "FILE",
     .help = "Write requests and answers as RoCEv2 packets, for Wireshark; see below",
     .check = check_file,
     .prepare = empty_file,
     .variable_of = whole_path_of},
    {.name = "--pcap-snap",
     .variable = "VERBENA_PCAP_SNAP",
     .placeholder = "BYTES (65535)",
     .help = "Of each packet, keep so many bytes at most",
     .check = check_snap},
    {.name = "--fault",
     .variable = kFaultVariable,
     .placeholder = "FAULTS",
     .help = "Faults of soft0's network; see below",
     .check = [](std::string_view value) { return parse_fault_settings(value).status(); }},
    {.name = "--link",
     .variable = kLinkVariable,
     .placeholder = "LINK",
     .help = "What soft0's network costs; see below",
     .check = [](std::string_view value) { return parse_link_settings(value).status(); }},
    {.name = "--link-layer",
     .variable = kLinkLayerVariable,
     .placeholder = "LAYER (infiniband)",
     .help = "Of soft0's port: infiniband, or ethernet for RoCE",
     .check = [](std::string_view value) { return parse_link_layer(value).status(); }},
    {.name = "--devices",
     .variable = kDevicesVariable,
     .placeholder = "N (1)",
     .help = "So many software devices: soft0, soft1 and so on, 8 at most",
     .check = [](std::string_view value) { return parse_soft_devices(value).status(); }},
    {.name = "--check",
     .variable = kCheckVariable,
     .placeholder = "[=OPTIONS]",
     .help = "Report misuse of verbs, see below",
     .check = check_check,
     .prepare = prepare_check,
     .variable_of = check_variable_of,
     .value_optional = true},
};

Status wrong_option(const std::string& why) {
  return {StatusCode::kInvalidArgument, "run: " + why};
}

Status wrong_value(const RunOption& option, const Status& status) {
  return wrong_option(fmt::format("{} {}", option.name, status.message()));
}

using Taken = std::pair<const RunOption*, std::string>;

// An option's value: behind '=', or the next argument.
Status take_option(const RunOption& option, std::vector<std::string>& arguments,
                   std::vector<Taken>& taken) {
  if (option.value_optional && arguments[0] == option.name) arguments[0] += '=';
  const size_t equals = arguments[0].find('=');
  const bool joined = equals != std::string::npos;
  // "--trace -- PROGRAM" names no file; one that begins with '-' stands behind '='.
  if (!joined && (arguments.size() < 2 || arguments[1].starts_with('-'))) {
    return wrong_option(fmt::format("{} needs a value; see 'verbena run --help'", option.name));
  }
  const std::string value = joined ? arguments[0].substr(equals + 1) : arguments[1];
  arguments.erase(arguments.begin(), arguments.begin() + (joined ? 1 : 2));
  if (const Status status = option.check(value); !status.ok()) return wrong_value(option, status);
  taken.emplace_back(&option, value);
  return {};
}

// Once nothing is wrong with any of them: prepare() empties files.
Status apply(const std::vector<Taken>& taken) {
  for (const auto& [option, value] : taken) {
    if (option->prepare == nullptr) continue;
    if (const Status status = option->prepare(value); !status.ok()) {
      return wrong_value(*option, status);
    }
  }
  for (const auto& [option, value] : taken) {
    VERBENA_RETURN_IF_ERROR(set_environment(
        option->variable, option->variable_of != nullptr ? option->variable_of(value) : value));
  }
  return {};
}

Status check_environment(const RunOption& option) {
  const char* const value = std::getenv(option.variable);
  if (value == nullptr || *value == '\0') return {};
  const Status status = option.check(value);
  return status.ok() ? status
                     : wrong_option(fmt::format("{} {}", option.variable, status.message()));
}

}  // namespace

std::span<const RunOption> run_options() { return kOptions; }

Status take_run_options(std::vector<std::string>& arguments) {
  std::vector<Taken> taken;
  const auto is_taken = [&taken](const RunOption& option) {
    return std::any_of(taken.begin(), taken.end(),
                       [&option](const Taken& one) { return one.first == &option; });
  };
  while (!arguments.empty()) {
    const std::string name = arguments[0].substr(0, arguments[0].find('='));
    const auto* const option =
        std::find_if(std::begin(kOptions), std::end(kOptions),
                     [&name](const RunOption& known) { return name == known.name; });
    if (option == std::end(kOptions)) break;
    if (is_taken(*option)) return wrong_option(fmt::format("{} is given twice", name));
    VERBENA_RETURN_IF_ERROR(take_option(*option, arguments, taken));
  }
  if (!arguments.empty() && arguments[0] == "--") {
    arguments.erase(arguments.begin());
  } else if (!arguments.empty() && arguments[0].starts_with('-')) {
    return wrong_option(
        fmt::format("there is no option '{}'; see 'verbena run --help'", arguments[0]));
  }
  for (const RunOption& option : kOptions) {
    if (!is_taken(option)) VERBENA_RETURN_IF_ERROR(check_environment(option));
  }
  return apply(taken);
}

}  // namespace verbena::cli
