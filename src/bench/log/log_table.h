// The results of the log as a table for the terminal.
#pragma once

#include <string>
#include <vector>

#include "src/bench/result/point_result.h"

namespace verbena::bench {

// Of LogWorkload's metrics.
enum LogMetric : uint8_t { kSkippedPerBatch, kFullWaitsPerBatch, kReadPerEntry, kHolesPerBatch };

// One line per point, and a legend below.
std::string log_table(const std::vector<PointResult>& results);

}  // namespace verbena::bench
