// The results of the join as a table for the terminal.
#pragma once

#include <string>
#include <vector>

#include "src/bench/result/point_result.h"

namespace verbena::bench {

// Of JoinWorkload's metrics.
enum JoinMetric : uint8_t {
  kShuffleNsPerTuple,
  kPartitionNsPerTuple,
  kProbeNsPerTuple,
  kCyclesPerTuple,
  kResultPerOuterTuple
};

// One line per point, and a legend below.
std::string join_table(const std::vector<PointResult>& results);

}  // namespace verbena::bench
