// The results of raw verbs as a table for the terminal.
#pragma once

#include <string>
#include <vector>

#include "src/bench/result/point_result.h"

namespace verbena::bench {

// One line per point, and a legend below.
std::string verbs_table(const std::vector<PointResult>& results);

}  // namespace verbena::bench
