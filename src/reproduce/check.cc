#include "src/reproduce/check.h"

#include <algorithm>

namespace verbena::reproduce {

bool Selection::contains(const bench::Point& point) const {
  if (topology && *topology != point.topology) return false;
  return std::all_of(axes.begin(), axes.end(), [&](const auto& axis) {
    const auto& values = axis.second;
    return std::find(values.begin(), values.end(), axis.first->get(point)) != values.end();
  });
}

}  // namespace verbena::reproduce
