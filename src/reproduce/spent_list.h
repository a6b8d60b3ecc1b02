// Claims that a value was ever set by, be it a parameter of a profile or a setting of an
// experiment, and claims about the same measured points: that they hold shows nothing. Whoever sets
// the value anew does not get them back, so they are listed for good, in reproduce/spent.toml:
//
//   [[spent]]
//   by = "rx_receive"
//   claims = ["msgproto.f10c.send_peak"]
#pragma once

#include <map>
#include <string>

#include "verbena/status.h"

namespace verbena::reproduce {

// By claim, what was set by it.
using SpentClaims = std::map<std::string, std::string>;

// kNotFound: no such file. kInvalidArgument: one line with file, line and cause.
Result<SpentClaims> read_spent_list(const std::string& path);

}  // namespace verbena::reproduce
