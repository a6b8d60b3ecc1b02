// What a calibration found, for people and for programs.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "src/calibrate/calibration.h"

namespace verbena::calibrate {

// What was measured, by which parameter the simulation explains it, and what it does not explain;
// behind it what was predicted, if anything was, and a warning of busy_text().
std::string calibration_text(const Calibration& calibration);
// What other programs had of the CPUs; empty where that was next to nothing.
std::string busy_text(const Calibration& calibration);
// Adds "observations", "parameters", "cpu_share", a "warning" of busy_text(), and with a check
// "predictions" and their "summary".
void add_to_json(const Calibration& calibration, nlohmann::json* document);

}  // namespace verbena::calibrate
