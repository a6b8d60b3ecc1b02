#include "src/bench/explain/explain_point.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "src/bench/run/node_pool.h"
#include "src/device/sim/simulation.h"

namespace verbena::bench {

Result<size_t> choose_message(const std::vector<sim::Recorder::Taken>& taken,
                              sim::Time complete_until, double quantile) {
  std::vector<uint64_t> latencies;
  latencies.reserve(taken.size());
  for (const sim::Recorder::Taken& one : taken) latencies.push_back(one.taken_ns - one.posted_ns);
  size_t end = 0;
  while (end < taken.size() && taken[end].taken <= complete_until) ++end;
  if (end == 0) {
    return Status(StatusCode::kNotFound,
                  "no message was recorded from its post to its response; give a longer "
                  "--duration, or fewer nodes or smaller messages");
  }
  const size_t first = end / 10;
  const size_t middle = first + (end - first) / 2;
  std::vector<uint64_t> sorted = latencies;
  const auto rank =
      sorted.begin() + std::llround(quantile * static_cast<double>(sorted.size() - 1));
  std::nth_element(sorted.begin(), rank, sorted.end());
  const uint64_t wanted = *rank;
  const auto distance = [](uint64_t a, uint64_t b) { return a > b ? a - b : b - a; };
  size_t best = first;
  for (size_t i = first; i < end; ++i) {
    const std::pair one(distance(latencies[i], wanted), distance(i, middle));
    if (one < std::pair(distance(latencies[best], wanted), distance(best, middle))) best = i;
  }
  return best;
}

Result<Explanation> explain_point(const std::string& device, const Point& point,
                                  const RunLength& length, double quantile,
                                  sim::Recorder* recorder) {
  const std::unique_ptr<NodePool> pool = NodePool::simulated(device);
  RunOptions options;
  options.length = length;
  options.before_timed = [recorder](const std::vector<pid_t>&) {
    sim::Simulation::current()->record(recorder);
    return Status::ok_status();
  };
  options.after_timed = [] { sim::Simulation::current()->record(nullptr); };
  RunFailure failure;
  Explanation explanation;
  VERBENA_ASSIGN_OR_RETURN(explanation.run, run_point(*pool, point, options, 0, &failure));
  explanation.messages = recorder->taken().size();
  VERBENA_ASSIGN_OR_RETURN(const size_t chosen,
                           choose_message(recorder->taken(), recorder->complete_until(), quantile));
  explanation.chosen = recorder->taken()[chosen];
  const MessagePaths paths(*recorder, explanation.run.layout);
  VERBENA_ASSIGN_OR_RETURN(explanation.path, paths.find(explanation.chosen));
  return explanation;
}

}  // namespace verbena::bench
