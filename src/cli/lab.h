// The Python package that turns result files into a page and into the plain answer.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace verbena::cli {

// Writes the report page `out` from result files and directories. Returns the exit code; what is
// wrong with an input is told on standard error.
int write_report(const std::string& out, const std::vector<std::string>& inputs);

// Writes the page `out` about a reproduction of the papers from its data (lab/README.md).
int write_reproduction(const std::string& out, const nlohmann::json& data);

// Writes the page `out` about a calibration from what `verbena calibrate --json` writes.
int write_calibration(const std::string& out, const nlohmann::json& data);

// Prints which protocol to use, in a few sentences, to standard output.
int print_verdict(const std::vector<std::string>& inputs);

}  // namespace verbena::cli
