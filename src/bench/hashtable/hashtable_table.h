// The results of the hashtable as a table for the terminal.
#pragma once

#include <string>
#include <vector>

#include "src/bench/result/point_result.h"

namespace verbena::bench {

// Of HashtableWorkload's metrics.
enum HashtableMetric : uint8_t {
  kWorkRequestsPerOperation,
  kRereadsPerOperation,
  kLostRacesPerOperation,
  kHotHitsPerOperation,
  kModificationsPerFlush
};

// One line per point, and a legend below.
std::string hashtable_table(const std::vector<PointResult>& results);

}  // namespace verbena::bench
