// How long a run lasts, and what is done in it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "verbena/status.h"

namespace verbena::bench {

// So long nothing may complete in a run, and no sign of life come from a node.
inline constexpr uint64_t kStallNs = 30'000'000'000;

// Until either limit is reached.
struct RunLength {
  uint64_t requests = UINT64_MAX;  // of each requesting thread
  uint64_t duration_ns = 300'000'000;
};

struct RunOptions {
  RunLength length;
  // Instead of a duration, for simulations: about so many requests of all threads together, and
  // enough that all slots have been used several times. 0: `length` says.
  uint64_t messages = 0;
  // A simulation that takes its length from `messages` lasts so long at least.
  uint64_t least_simulated_ns = 0;
  // Of a simulated device's profile (device/sim/profile_variants.h), in turns: run r of a point is
  // of variant r % variants, and a point has so many times as many runs as the plan says.
  uint32_t variants = 1;
  // So long nothing may complete, and a node may give no sign of life (2 s at least) from its start
  // on; in time in which this process runs.
  uint64_t stall_ns = kStallNs;
  bool verify = false;  // every payload byte of the measured requests and responses
  // Of the phases, warm-up and CPU cost alone; the latter takes all of `length`.
  bool cost_only = false;
  // Just before and after the timed phase, while the threads of all nodes are there; `processes`:
  // the nodes that were started on this host. An error of the first ends the run.
  std::function<Status(const std::vector<pid_t>& processes)> before_timed{};
  std::function<void()> after_timed{};
};

}  // namespace verbena::bench
