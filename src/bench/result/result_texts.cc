#include "src/bench/result/result_texts.h"

#include <fmt/format.h>

#include "src/bench/result/text_table.h"

namespace verbena::bench {

std::string cost_number_text(double count) { return count == 0 ? "0" : count_text(count); }

std::string cost_text(const std::optional<CpuCost>& cost) {
  if (!cost) return "-";
  return cost_number_text(cost->instructions.value_or(cost->cycles));
}

std::string simulation_text(const std::vector<PointResult>& results) {
  SimulationCounts sum;
  for (const PointResult& result : results) {
    for (const RunResult& run : result.runs) {
      if (!run.simulated) continue;
      sum.events += run.simulated->events;
      sum.virtual_ns += run.simulated->virtual_ns;
      sum.wall_s += run.simulated->wall_s;
    }
  }
  if (sum.events == 0 || sum.wall_s <= 0) return {};
  return fmt::format(
      "simulated: {:.3g} ms of virtual time in {:.2f} s, {:.1f} M events, {:.1f} M/s\n",
      static_cast<double>(sum.virtual_ns) / 1e6, sum.wall_s, static_cast<double>(sum.events) / 1e6,
      static_cast<double>(sum.events) / 1e6 / sum.wall_s);
}

}  // namespace verbena::bench
