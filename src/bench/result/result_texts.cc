#include "src/bench/result/result_texts.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/bench/experiment/workload.h"
#include "src/bench/result/text_table.h"
#include "src/device/sim/profile_variants.h"

namespace verbena::bench {

std::string cost_number_text(double count) { return count == 0 ? "0" : count_text(count); }

std::string cost_text(const std::optional<CpuCost>& cost) {
  if (!cost) return "-";
  return cost_number_text(cost->instructions.value_or(cost->cycles));
}

std::string bands_text(const std::vector<PointResult>& results) {
  const auto simulated = [](const PointResult& result) {
    return result.measured() && result.runs.front().simulated;
  };
  if (std::none_of(results.begin(), results.end(), simulated)) return {};
  std::vector<std::vector<std::string>> rows = {
      {"point", "median", "band", "", "rate", "band", ""}};
  const auto percent = [](double end, double median) {
    return fmt::format("{:+.0f} %", (end / median - 1) * 100);
  };
  const auto add = [&](std::vector<std::string>& row, const Band& band, double median, auto text) {
    row.insert(row.end(), {text(median), fmt::format("{} to {}", text(band.least), text(band.most)),
                           percent(band.least, median) + "/" + percent(band.most, median)});
  };
  for (const PointResult& result : results) {
    const std::optional<Band> rate = result.rate_band();
    const std::optional<Band> p50_ns = result.p50_band_ns();
    if (!rate || !p50_ns) continue;
    rows.push_back({result.point.workload->text(result.point)});
    add(rows.back(), *p50_ns, result.p50_ns().median, time_text);
    add(rows.back(), *rate, result.rate_per_s().median, rate_text);
  }
  if (rows.size() == 1) {
    return "no band measured: --variants 5 tells how far these depend on what is assumed\n";
  }
  return fmt::format(
             "\nband: from the least to the most over {} variants of the profile, each parameter "
             "within +-{:.0f} %\nof its value or, where it is assumed, within its range; medians "
             "are "
             "over all of them\n",
             results.front().variants, 100 * sim::kVariantShare) +
         text_table(rows, 1);
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
