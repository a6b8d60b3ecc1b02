// What one run of a point found.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "src/bench/load/poll_cost.h"
#include "verbena/rpc.h"

namespace verbena::bench {

// What a simulation had to do for a run.
struct SimulationCounts {
  uint64_t events = 0;
  uint64_t virtual_ns = 0;
  uint64_t digest = 0;  // of all that happened: equal for equal runs
  double wall_s = 0;
};

// Of one of WorkloadTraits::kinds.
struct KindResult {
  uint64_t requests = 0;
  double rate_per_s = 0;
  double p50_ns = 0;
  double p99_ns = 0;
  double p999_ns = 0;
};

struct RunResult {
  uint64_t requests = 0;  // measured ones that were answered
  uint64_t errors = 0;    // requests without an answer, and payloads that were not what was sent
  double rate_per_s = 0;  // of all requesting threads together
  // Open loop: requests that arrived per second, sent or not; 0: a closed loop.
  double offered_rate_per_s = 0;
  double p50_ns = 0;
  double p99_ns = 0;
  double p999_ns = 0;
  std::optional<CpuCost> requester_cost{};
  std::optional<CpuCost> responder_cost{};
  // By WorkloadTraits::metrics; nothing where there is nothing to count.
  std::vector<std::optional<double>> metrics{};
  // By WorkloadTraits::kinds; nothing where there was no request of this kind.
  std::vector<std::optional<KindResult>> kinds{};
  MarkLayout layout = MarkLayout::kLastBit;  // what the connections really used
  std::optional<SimulationCounts> simulated{};
};

}  // namespace verbena::bench
