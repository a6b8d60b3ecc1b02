// `verbena run --check`: what of it concerns the tool.
#pragma once

#include <string>
#include <string_view>

#include "verbena/status.h"

namespace verbena::cli {

// Takes the value of --check (empty: with its defaults) and tells the program to come, by its
// environment. A value that cannot be used is kInvalidArgument, with the limit and a remedy.
Status set_check(std::string_view value);

// The lines of the help page on --check.
std::string check_help();

}  // namespace verbena::cli
