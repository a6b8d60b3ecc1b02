// How busy each unit of simulated nodes is at a point of any workload, and so what limits it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "src/bench/experiment/point.h"
#include "src/bench/result/point_result.h"
#include "src/bench/result/run_result.h"
#include "src/device/sim/usage.h"
#include "verbena/status.h"

namespace verbena::bench {

// One unit of the nodes of one role, over the timed phase.
struct UnitUsage {
  std::string_view role;  // WorkloadTraits::node_names
  sim::NodeUnit unit = sim::NodeUnit::kProcessor;
  uint32_t nodes = 0;
  double mean = 0;  // shares of the time, 0 to 1, of these nodes
  double most = 0;
  uint32_t busiest = 0;  // the node that has it
};

struct PointUsage {
  RunResult run;
  std::vector<UnitUsage> units;  // by role, and then as sim::NodeUnit has them
};

// Runs a point once on nodes with the RNIC `device`, "sim:PROFILE", for about so many messages of
// all threads together (RunOptions::messages).
Result<PointUsage> measure_usage(const std::string& device, const Point& point, uint64_t messages);
// What the nodes of each role did together; `nodes` by their numbers in the point's wiring.
std::vector<UnitUsage> usage_by_role(const Point& point, const std::vector<sim::NodeUsage>& nodes);

// The units, the busiest first.
std::vector<UnitUsage> by_load(std::vector<UnitUsage> units);
// "back-end atomic unit 98 %".
std::string load_text(const UnitUsage& usage);

// All units that did anything.
std::string usage_table(const PointUsage& usage);
// A line per point: its axes, rate and median, and the units that are busiest there.
std::string limits_table(const std::vector<PointResult>& results,
                         const std::vector<PointUsage>& usages);
// {role: {nodes, unit: {mean, most}}}.
nlohmann::json usage_json(const PointUsage& usage);

}  // namespace verbena::bench
