// One run of one point, on the requester's side: set-up, warm-up, CPU cost, measurement.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "src/bench/point.h"
#include "src/bench/poll_cost.h"
#include "verbena/connection.h"
#include "verbena/device.h"
#include "verbena/status.h"

namespace verbena::bench {

struct RunOptions {
  RunLength length;
  bool verify = false;  // every payload byte of the measured requests and responses
};

struct RunResult {
  uint64_t requests = 0;  // measured ones that were answered
  uint64_t errors = 0;    // requests without an answer, and payloads that were not what was sent
  double rate_per_s = 0;
  double p50_ns = 0;
  double p99_ns = 0;
  double p999_ns = 0;
  std::optional<CpuCost> requester_cost;
  std::optional<CpuCost> responder_cost;
  MarkLayout layout = MarkLayout::kLastBit;  // what the connection really used
};

// Each run makes its queue pairs and memory anew, so that the spread over the runs shows what their
// placement does. On failure the responder is ready for the next point, unless it is gone
// (kUnavailable); `lost` is how many requests were left without an answer.
Result<RunResult> run_point(const Device& device, const ProtectionDomain& domain,
                            ControlConnection& control, const Point& point,
                            const RunOptions& options, uint64_t* lost);

// Says good-bye: the responder's side then ends without complaint.
void end_session(ControlConnection& control);

}  // namespace verbena::bench
