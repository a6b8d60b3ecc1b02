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

Result<double> PointRunner::run_until(const bench::Point& point, uint32_t number,
                                      const Tells& tells) {
  constexpr uint32_t kMostRuns = 10;
  bench::RunOptions options = options_;
  for (uint32_t run = 1;; ++run) {
    bench::RunFailure failure;
    VERBENA_ASSIGN_OR_RETURN(const bench::RunResult result,
                             bench::run_point(*pool_, point, options, number, &failure));
    Result<double> told = tells(result);
    if (told.ok() || told.status().code() != StatusCode::kUnavailable || run == kMostRuns) {
      return told;
    }
    options.length.duration_ns *= 2;
    options.messages *= 2;
  }
}

}  // namespace verbena::calibrate
