// The results of the shuffle as a table for the terminal.
#pragma once

#include <string>
#include <vector>

#include "src/bench/result/point_result.h"

namespace verbena::bench {

// Of ShuffleWorkload's metrics.
enum ShuffleMetric : uint8_t {
  kWritesPerRecord,
  kCountersPerRecord,
  kCreditReadsPerRecord,
  kRefusalsPerRecord,
  kReceivedPerRecord,
  kSenderCyclesPerRecord,
  kReceiverCyclesPerRecord
};

// One line per point, and a legend below.
std::string shuffle_table(const std::vector<PointResult>& results);

}  // namespace verbena::bench
