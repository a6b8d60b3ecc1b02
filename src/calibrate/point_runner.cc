#include "src/calibrate/point_runner.h"

#include <utility>

#include "verbena/connection.h"

namespace verbena::calibrate {

Result<PointRunner> PointRunner::on_this_host(const std::string& device, uint64_t duration_ns) {
  VERBENA_ASSIGN_OR_RETURN(auto pool,
                           bench::NodePool::on_this_host(device, JobSecret::random(), 0));
  bench::RunOptions options;
  options.length.duration_ns = duration_ns;
  return PointRunner(std::move(pool), std::move(options));
}

PointRunner PointRunner::simulated(const std::string& device, uint64_t messages) {
  bench::RunOptions options;
  options.messages = messages;
  return {bench::NodePool::simulated(device), std::move(options)};
}

Result<bench::RunResult> PointRunner::run(const bench::Point& point, uint32_t number) {
  bench::RunFailure failure;
  return bench::run_point(*pool_, point, options_, number, &failure);
}

}  // namespace verbena::calibrate
