// Cells and lines that the tables of all workloads have.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "src/bench/load/poll_cost.h"
#include "src/bench/result/point_result.h"

namespace verbena::bench {

// "-" where there is none.
std::string cost_text(const std::optional<CpuCost>& cost);
std::string cost_number_text(double count);
// The bands of simulated results, a line for each point; that there are none, where nobody asked
// for variants. Empty where nothing was simulated.
std::string bands_text(const std::vector<PointResult>& results);
// What simulations took for these results; empty where nothing was simulated.
std::string simulation_text(const std::vector<PointResult>& results);

}  // namespace verbena::bench
