// Whether what a part of a check says holds, and what was found.
#pragma once

#include <optional>
#include <string>

#include "src/reproduce/check.h"
#include "src/reproduce/quantity.h"
#include "verbena/status.h"

namespace verbena::reproduce {

struct Finding {
  bool holds = false;
  std::string text;                // what was found, for people: "42.9"
  std::optional<double> number{};  // where it is one
  std::optional<double> error{};   // of the worst value, a share of what is stated; none of bounds
};

// Numbers may be off by `tolerance`, a share of what is stated. The errors are those of
// quantity_of().
Result<Finding> find(const Part& part, const Claim& claim, double tolerance, const Source& source);

}  // namespace verbena::reproduce
