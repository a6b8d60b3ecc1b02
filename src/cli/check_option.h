// `verbena run --check`: what of it concerns the tool.
#pragma once

#include <string>
#include <string_view>

#include "verbena/status.h"

namespace verbena::cli {

// Says what is wrong with a value of --check, with the limit and a remedy.
Status check_check(std::string_view value);
// Says whether its log can be written; makes it.
Status prepare_check(std::string_view value);
// What the program to come gets by its environment.
std::string check_variable_of(std::string_view value);

// The lines of the help page on --check.
std::string check_help();

}  // namespace verbena::cli
