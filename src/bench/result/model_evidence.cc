#include "src/bench/result/model_evidence.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace verbena::bench {

namespace {

using nlohmann::json;

std::string class_text(size_t count, const ModelEvidence& evidence, std::string_view name) {
  return fmt::format("{} {} ({:.0f} %)", count, name,
                     100.0 * static_cast<double>(count) /
                         static_cast<double>(std::max<size_t>(evidence.all(), 1)));
}

}  // namespace

ModelEvidence count_evidence(std::string title, const std::vector<sim::ParameterText>& parameters) {
  ModelEvidence evidence{.title = std::move(title)};
  for (const sim::ParameterText& one : parameters) {
    if (one.evidence == "documented") ++evidence.documented;
    if (one.evidence == "calibrated") ++evidence.calibrated;
    if (one.evidence == "assumed") ++evidence.assumed;
  }
  return evidence;
}

std::optional<ModelEvidence> model_evidence(const std::string& device) {
  if (!device.starts_with(sim::kDevicePrefix)) return std::nullopt;
  const std::string name = device.substr(std::string_view(sim::kDevicePrefix).size());
  const Result<sim::Profile> profile = sim::load_profile(name);
  const auto parameters = sim::profile_parameters(name);
  if (!profile.ok() || !parameters.ok()) return std::nullopt;
  return count_evidence(profile->title, *parameters);
}

std::string model_text(const std::string& device) {
  const std::optional<ModelEvidence> evidence = model_evidence(device);
  if (!evidence) return {};
  return fmt::format(
      "{} is modelled, not measured: of the {} parameters of its profile {}, {}, {}\n", device,
      evidence->all(), class_text(evidence->documented, *evidence, "documented"),
      class_text(evidence->calibrated, *evidence, "calibrated"),
      class_text(evidence->assumed, *evidence, "assumed"));
}

json models_json(const std::vector<std::string>& devices) {
  json models = json::object();
  for (const std::string& device : devices) {
    const std::optional<ModelEvidence> evidence = model_evidence(device);
    if (!evidence) continue;
    models[device] = {{"title", evidence->title},
                      {"parameters",
                       {{"documented", evidence->documented},
                        {"calibrated", evidence->calibrated},
                        {"assumed", evidence->assumed}}}};
  }
  return models;
}

}  // namespace verbena::bench
