#include "src/calibrate/simulate.h"

#include <fmt/format.h>

#include "src/bench/experiment/workload.h"
#include "src/bench/result/statistics.h"
#include "src/calibrate/point_runner.h"
#include "src/device/sim/profile_files.h"

namespace verbena::calibrate {

Result<double> simulate(const std::vector<sim::ParameterText>& parameters,
                        const bench::Point& point, Quantity quantity, uint64_t messages,
                        uint32_t runs) {
  constexpr const char* kName = "calibrate-fit";
  sim::provide_profile(kName, sim::profile_text(kName, kName, parameters));
  PointRunner runner =
      PointRunner::simulated(fmt::format("{}{}", sim::kDevicePrefix, kName), messages);
  double cycles_per_ns = 1;
  for (const sim::ParameterText& one : parameters) {
    if (one.name == "cpu_clock") cycles_per_ns = one.number;
  }
  std::vector<double> all;
  for (uint32_t run = 0; run < runs; ++run) {
    // What was measured on a busy machine may take longer than a run lasts.
    const Result<double> ns = runner.run_until(point, run, [&](const bench::RunResult& result) {
      return quantity_ns(quantity, result, cycles_per_ns);
    });
    if (!ns.ok()) {
      return Status(ns.status().code(),
                    fmt::format("the simulation of {}: {}; something else kept this machine busy "
                                "while it was measured, so calibrate again when it is idle",
                                point.workload->text(point), ns.status().message()));
    }
    all.push_back(*ns);
  }
  return bench::median(all);
}

}  // namespace verbena::calibrate
