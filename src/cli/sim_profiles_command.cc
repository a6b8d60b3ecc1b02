// `verbena sim profiles`: the simulated RNICs, and every parameter of one with where it is from.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/base/output.h"
#include "src/bench/result/model_evidence.h"
#include "src/bench/result/text_table.h"
#include "src/cli/sim_command.h"
#include "src/device/sim/profile_files.h"
#include "src/device/sim/rnic_profile.h"

namespace verbena::cli {

namespace {

struct ProfilesOptions {
  std::vector<std::string> names;
  bool json = false;
};

using Parameters = std::vector<sim::ParameterText>;

struct ListedProfile {
  std::string name;
  std::string title;
  Parameters parameters;
};

Result<std::vector<ListedProfile>> read_profiles(const std::vector<std::string>& names) {
  std::vector<ListedProfile> list;
  for (std::string name : names) {
    if (name.starts_with(sim::kDevicePrefix)) name = name.substr(sim::kDevicePrefix.size());
    VERBENA_ASSIGN_OR_RETURN(const sim::Profile profile, sim::load_profile(name));
    VERBENA_ASSIGN_OR_RETURN(Parameters parameters, sim::profile_parameters(name));
    list.push_back({name, profile.title, std::move(parameters)});
  }
  return list;
}

nlohmann::json profiles_json(const std::vector<ListedProfile>& profiles) {
  nlohmann::json list = nlohmann::json::array();
  for (const ListedProfile& profile : profiles) {
    nlohmann::json parameters = nlohmann::json::array();
    for (const sim::ParameterText& one : profile.parameters) {
      parameters.push_back({{"name", one.name},
                            {"value", std::stod(one.value)},
                            {"unit", one.unit},
                            {"evidence", one.evidence},
                            {"source", one.source},
                            {"meaning", one.meaning},
                            {"claims", one.claims}});
    }
    list.push_back({{"device", std::string(sim::kDevicePrefix) + profile.name},
                    {"title", profile.title},
                    {"parameters", std::move(parameters)}});
  }
  return list;
}

std::string overview(const std::vector<ListedProfile>& profiles) {
  std::vector<std::vector<std::string>> rows = {
      {"device", "what it is", "parameters", "documented", "calibrated", "assumed"}};
  for (const ListedProfile& profile : profiles) {
    const bench::ModelEvidence evidence = bench::count_evidence(profile.title, profile.parameters);
    rows.push_back({std::string(sim::kDevicePrefix) + profile.name, profile.title,
                    fmt::format("{}", evidence.all()), fmt::format("{}", evidence.documented),
                    fmt::format("{}", evidence.calibrated), fmt::format("{}", evidence.assumed)});
  }
  return bench::text_table(rows, 2);
}

std::string details(const ListedProfile& profile) {
  std::string text = fmt::format("{}{}: {}\n\n", sim::kDevicePrefix, profile.name, profile.title);
  std::vector<std::vector<std::string>> rows = {
      {"parameter", "value", "unit", "evidence", "meaning", "source"}};
  for (const sim::ParameterText& one : profile.parameters) {
    std::string source = one.source;
    if (!one.claims.empty()) source += fmt::format(" [{}]", fmt::join(one.claims, ", "));
    rows.push_back({one.name, one.value, one.unit, one.evidence, one.meaning, source});
  }
  return text + bench::text_table(rows, rows.front().size());
}

int list_profiles(const ProfilesOptions& options) {
  const bool all = options.names.empty();
  const Result<std::vector<ListedProfile>> profiles =
      read_profiles(all ? sim::profile_names() : options.names);
  if (!profiles.ok()) return report_error(profiles.status());
  if (options.json) {
    print_output("{}\n", profiles_json(*profiles).dump(1));
    return 0;
  }
  if (all) {
    print_output("{}", overview(*profiles));
    return 0;
  }
  for (const ListedProfile& profile : *profiles) {
    print_output("{}{}", &profile == profiles->data() ? "" : "\n", details(profile));
  }
  return 0;
}

}  // namespace

void add_sim_profiles_command(Tool& tool, CLI::App& sim) {
  CLI::App* command = sim.add_subcommand(
      "profiles", "List the simulated RNICs, or all parameters of some with their sources");
  const auto options = std::make_shared<ProfilesOptions>();
  CLI::Option* names = command->add_option("PROFILE", options->names,
                                           "Profiles to list the parameters of; none: an overview");
  names->option_text(" ");
  tool.choices[names] = sim::profile_names();
  command->add_flag("--json", options->json, "Print a JSON list with all parameters");
  command->footer(
      "Evidence: documented, by the maker or another source; calibrated, so that the claims behind "
      "its\n"
      "source hold; assumed, from devices or figures that are alike.\n\n" +
      examples_text({"verbena sim profiles", "verbena sim profiles connectx3-fdr",
                     "verbena sim profiles --json"}));
  command->callback([&tool, options] { tool.exit_code = list_profiles(*options); });
}

}  // namespace verbena::cli
