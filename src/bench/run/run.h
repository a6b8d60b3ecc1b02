// One run of one point, as its coordinator leads it: set-up, warm-up, CPU cost, measurement.
#pragma once

#include <cstdint>

#include "src/bench/experiment/point.h"
#include "src/bench/experiment/run_options.h"
#include "src/bench/result/run_result.h"
#include "src/bench/run/node_pool.h"
#include "verbena/status.h"

namespace verbena::bench {

class PointNodes;

// What a failed run leaves to tell.
struct RunFailure {
  uint64_t lost = 0;         // requests without an answer
  bool nodes_remain = true;  // all are ready for the next point
};

// Each run makes its queue pairs and memory anew, so that the spread over the runs shows what their
// placement does. The calling thread sleeps while the nodes work. On failure the status names the
// node and the cause; where a node has died, that is the cause.
//
// On simulated nodes a run is the same wherever and whenever it is repeated; `run`, the number
// among the runs of this point, gives each its own seed and RunOptions::variants its profile.
Result<RunResult> run_point(NodePool& pool, const Point& point, const RunOptions& options,
                            uint32_t run, RunFailure* failure);

// The same on nodes that the caller has made for this run and takes down.
Result<RunResult> run_on_nodes(PointNodes& nodes, const Wiring& wiring, const Point& point,
                               const RunOptions& options, uint64_t seed, RunFailure* failure);

}  // namespace verbena::bench
