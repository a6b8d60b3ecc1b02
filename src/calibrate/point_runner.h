// Runs single points, on a device or in a simulation.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "src/bench/run/node_pool.h"
#include "src/bench/run/run.h"
#include "verbena/status.h"

namespace verbena::calibrate {

class PointRunner {
 public:
  // Nodes are processes of this host, and stay from point to point. A run lasts so long.
  static Result<PointRunner> on_this_host(const std::string& device, uint64_t duration_ns);
  // "sim:PROFILE"; a run has about so many messages.
  static PointRunner simulated(const std::string& device, uint64_t messages);

  // Runs the point, again and for twice as long as long as `tells` finds nothing in what was
  // measured: on a busy machine one side may not run at all for a while. kUnavailable, as `tells`
  // said it, after ten such runs.
  using Tells = std::function<Result<double>(const bench::RunResult&)>;
  Result<double> run_until(const bench::Point& point, uint32_t number, const Tells& tells);

 private:
  PointRunner(std::unique_ptr<bench::NodePool> pool, bench::RunOptions options)
      : pool_(std::move(pool)), options_(std::move(options)) {}

  std::unique_ptr<bench::NodePool> pool_;
  bench::RunOptions options_;
};

}  // namespace verbena::calibrate
