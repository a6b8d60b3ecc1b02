// One run of one point, as its coordinator leads it: set-up, warm-up, CPU cost, measurement.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "src/bench/experiment/point.h"
#include "src/bench/load/poll_cost.h"
#include "src/bench/run/node_pool.h"
#include "verbena/status.h"

namespace verbena::bench {

class PointNodes;

struct RunOptions {
  RunLength length;
  // Instead of a duration, for simulations: about so many requests of all threads together, and
  // enough that all slots have been used several times. 0: `length` says.
  uint64_t messages = 0;
  // So long nothing may complete, and a node may give no sign of life; in time in which this
  // process runs.
  uint64_t stall_ns = kStallNs;
  bool verify = false;  // every payload byte of the measured requests and responses
  // Of the phases, warm-up and CPU cost alone; the latter takes all of `length`.
  bool cost_only = false;
  // Just before and after the timed phase, while the threads of all nodes are there; `processes`:
  // the nodes that were started on this host. An error of the first ends the run.
  std::function<Status(const std::vector<pid_t>& processes)> before_timed{};
  std::function<void()> after_timed{};
};

// What a simulation had to do for a run.
struct SimulationCounts {
  uint64_t events = 0;
  uint64_t virtual_ns = 0;
  uint64_t digest = 0;  // of all that happened: equal for equal runs
  double wall_s = 0;
};

struct RunResult {
  uint64_t requests = 0;  // measured ones that were answered
  uint64_t errors = 0;    // requests without an answer, and payloads that were not what was sent
  double rate_per_s = 0;  // of all requesting threads together
  double p50_ns = 0;
  double p99_ns = 0;
  double p999_ns = 0;
  std::optional<CpuCost> requester_cost{};
  std::optional<CpuCost> responder_cost{};
  // Of the responding threads' looks for a request, the share that found none; nothing for READ.
  std::optional<double> empty_look_share{};
  MarkLayout layout = MarkLayout::kLastBit;  // what the connections really used
  std::optional<SimulationCounts> simulated{};
};

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
// among the runs of this point, gives each its own seed.
Result<RunResult> run_point(NodePool& pool, const Point& point, const RunOptions& options,
                            uint32_t run, RunFailure* failure);

// The same on nodes that the caller has made for this run and takes down.
Result<RunResult> run_on_nodes(PointNodes& nodes, const Wiring& wiring, const Point& point,
                               const RunOptions& options, uint64_t seed, RunFailure* failure);

}  // namespace verbena::bench
