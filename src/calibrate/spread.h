// A value that was measured several times.
#pragma once

#include <algorithm>
#include <vector>

#include "src/base/assert.h"

namespace verbena::calibrate {

struct Spread {
  double median = 0;
  double least = 0;
  double most = 0;
};

// Of one value at least.
inline Spread spread_of(std::vector<double> values) {
  VERBENA_ASSERT(!values.empty());
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  const double median =
      values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
  return {.median = median, .least = values.front(), .most = values.back()};
}

}  // namespace verbena::calibrate
