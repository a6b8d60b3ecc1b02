#include "src/bench/statistics.h"

#include <algorithm>
#include <vector>

#include "src/base/assert.h"

namespace verbena::bench {

Summary summarize(std::span<const double> values) {
  VERBENA_ASSERT(!values.empty());
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const size_t middle = sorted.size() / 2;
  const double median =
      sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  return {median, sorted.front(), sorted.back()};
}

}  // namespace verbena::bench
