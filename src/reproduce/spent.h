// Which claims a profile was calibrated with: that these hold shows nothing.
#pragma once

#include <map>
#include <string>

#include "verbena/status.h"

namespace verbena::reproduce {

// By claim, the parameters that were taken from it: the tables of a profile file that have a list
// `claims`. kNotFound: no such file; kInvalidArgument: no TOML.
Result<std::map<std::string, std::string>> read_spent_claims(const std::string& profile_path);

}  // namespace verbena::reproduce
