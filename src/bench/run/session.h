// Carries out the points of a plan, run by run.
#pragma once

#include <functional>
#include <vector>

#include "src/bench/experiment/plan.h"
#include "src/bench/result/point_result.h"
#include "src/bench/run/node_pool.h"

namespace verbena::bench {

struct SessionHooks {
  // A run begins.
  std::function<void(const Point& point, uint32_t run)> begins = [](const Point&, uint32_t) {};
  // A run ended; these are all results so far, of points with at least one run or a failure.
  std::function<void(const std::vector<PointResult>& results)> ended =
      [](const std::vector<PointResult>&) {};
  // The last run of a point has succeeded, perhaps in an earlier session: fills in its profile.
  // None: nobody asked for one.
  std::function<void(PointResult& result)> finishes{};
};

// How many runs of these points are still to do; `before` as below.
uint64_t count_runs(const std::vector<PointGroup>& groups, uint32_t runs,
                    const std::vector<PointResult>& before);

// Measures every point, and goes on with the next one where one fails; stops where nothing further
// can succeed (a node is gone, the user interrupted). The results are in the order of the points;
// what was measured before an end is among them. `before`: results of an earlier session with the
// same points, whose runs are not repeated; failed points are tried again.
std::vector<PointResult> measure_points(const std::vector<PointGroup>& groups, uint32_t runs,
                                        const RunOptions& options, NodePool& pool,
                                        const SessionHooks& hooks,
                                        const std::vector<PointResult>& before = {});

}  // namespace verbena::bench
