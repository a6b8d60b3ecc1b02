// What the results of a simulated device rest on: they are modelled, and part of the model is
// assumed. Tables and result files say so.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "src/device/sim/rnic_profile.h"

namespace verbena::bench {

// How many parameters of a profile are of which class.
struct ModelEvidence {
  std::string title;
  size_t documented = 0;
  size_t calibrated = 0;
  size_t assumed = 0;

  size_t all() const { return documented + calibrated + assumed; }
};

ModelEvidence count_evidence(std::string title, const std::vector<sim::ParameterText>& parameters);
// Nothing for devices that are not simulated, and for profiles that cannot be read.
std::optional<ModelEvidence> model_evidence(const std::string& device);

// One line; empty where model_evidence() has nothing.
std::string model_text(const std::string& device);
// {device: {title, parameters: {documented, calibrated, assumed}}} of the simulated ones.
nlohmann::json models_json(const std::vector<std::string>& devices);

}  // namespace verbena::bench
