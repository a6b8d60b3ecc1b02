// The results of tagged messages as a table for the terminal.
#pragma once

#include <string>
#include <vector>

#include "src/bench/result/point_result.h"

namespace verbena::bench {

// Of MessageWorkload's metrics.
enum MessageMetric : uint8_t {
  kMessagesPerOperation,
  kRingShare,
  kCreditMessagesPerOperation,
  kUnexpectedShare,
  kPinnedBytesOfMeasurer,
  kUncopiedPerOperation,
  kMeanCollectiveNs
};

// One line per point, and a legend below.
std::string message_table(const std::vector<PointResult>& results);

}  // namespace verbena::bench
