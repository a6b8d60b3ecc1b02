// What a figure has on its horizontal axis: an axis of the design space, or what the papers compute
// from several of them.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "src/bench/experiment/axis.h"
#include "src/bench/experiment/point.h"

namespace verbena::reproduce {

struct Abscissa {
  std::string_view name;
  double (*value)(const bench::Point& point);
  // Axes that it moves along with: they do not tell one line of a figure from another.
  std::span<const std::string_view> moves;
};

// By name: of an axis in bench/experiment/axis.h, or
//   requesters         all requesting threads
//   responding-threads all responding threads
//   empty-percent      of the mailboxes, where a share of the requesters is active
// Null if there is none.
const Abscissa* find_abscissa(std::string_view name);

}  // namespace verbena::reproduce
