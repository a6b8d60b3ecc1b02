// The options of `verbena run`: each reaches the software RNIC as an environment variable, which
// the program's children inherit.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "verbena/status.h"

namespace verbena::cli {

struct RunOption {
  const char* name;         // "--fault"
  const char* variable;     // what it sets
  const char* placeholder;  // of its value, on the help page
  const char* help;
  // Says what is wrong with a value.
  Status (*check)(std::string_view value);
  // What is done once for an option that is given, and not for the variable; may be null.
  Status (*prepare)(std::string_view value) = nullptr;
  // What the variable becomes; null: the value itself.
  std::string (*variable_of)(std::string_view value) = nullptr;
  // Whether it may stand alone; a value stands behind '=' then.
  bool value_optional = false;
};

std::span<const RunOption> run_options();

// Takes the options that `arguments` begin with, and a "--" behind them, off; sets the variables.
// What they do not set is checked as it is in the environment. kInvalidArgument names the option
// that is wrong.
Status take_run_options(std::vector<std::string>& arguments);

}  // namespace verbena::cli
