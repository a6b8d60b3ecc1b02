// What a figure has on its horizontal axis: an axis of the design space, or what the papers compute
// from several of them.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "src/bench/experiment/point.h"

namespace verbena::reproduce {

struct Abscissa {
  std::string_view name;
  // Null: the value on the axis of that name, 0 where the workload has none.
  double (*computed)(const bench::Point& point);
  // Axes that it moves along with: they do not tell one line of a figure from another.
  std::span<const std::string_view> moves;

  double value(const bench::Point& point) const;
};

// By name: of an axis of a workload, or
//   requesters         all requesting threads
//   responding-threads all responding threads
//   empty-percent      of the mailboxes, where a share of the requesters is active
// Null if there is none.
const Abscissa* find_abscissa(std::string_view name);

}  // namespace verbena::reproduce
