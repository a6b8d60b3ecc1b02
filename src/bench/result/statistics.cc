#include "src/bench/result/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>
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
  const auto count = static_cast<double>(sorted.size());
  const double mean = std::accumulate(sorted.begin(), sorted.end(), 0.0) / count;
  double squares = 0;
  for (const double value : sorted) squares += (value - mean) * (value - mean);
  const double deviation = sorted.size() > 1 ? std::sqrt(squares / (count - 1)) : 0;
  return {median, sorted.front(), sorted.back(), mean, deviation, sorted.size()};
}

}  // namespace verbena::bench
