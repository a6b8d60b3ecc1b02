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
  // Of a share of a whole, in percentage points: by how much the worst value is beside what is
  // stated, and may be. In place of `error`.
  std::optional<double> error_points{};
  double tolerance_points = 0;
};

// Numbers may be off by `tolerance`, a share of what is stated; shares of a whole by as much of
// what is stated or of what that lacks to 100 %, whichever is less: 90 % by a quarter of 10. The
// errors are those of quantity_of().
Result<Finding> find(const Part& part, const Claim& claim, double tolerance, const Source& source);

}  // namespace verbena::reproduce
