// The results about requests and responses as a table for the terminal.
#pragma once

#include <string>
#include <vector>

#include "src/bench/result/point_result.h"

namespace verbena::bench {

// One line per point, and a legend below.
std::string request_response_table(const std::vector<PointResult>& results);
// The functions of each point that was profiled; empty if none was.
std::string request_response_profiles(const std::vector<PointResult>& results);

}  // namespace verbena::bench
