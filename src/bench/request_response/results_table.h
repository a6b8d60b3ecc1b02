// The results of a benchmark as a table for the terminal.
#pragma once

#include <string>
#include <vector>

#include "src/bench/result/point_result.h"

namespace verbena::bench {

// One line per point, and a legend below.
std::string results_table(const std::vector<PointResult>& results);
// What the simulations took; empty if there were none.
std::string simulation_text(const std::vector<PointResult>& results);
// The functions of each point that was profiled; empty if none was.
std::string profiles_table(const std::vector<PointResult>& results);

}  // namespace verbena::bench
