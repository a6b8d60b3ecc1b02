// The results of operations on remote memory as a table for the terminal.
#pragma once

#include <string>
#include <vector>

#include "src/bench/result/point_result.h"

namespace verbena::bench {

// Of RemoteWorkload's metrics.
enum RemoteMetric : uint8_t { kRoundTripsPerOperation, kAttemptsPerAcquisition };

// One line per point, and a legend below.
std::string remote_table(const std::vector<PointResult>& results);

}  // namespace verbena::bench
