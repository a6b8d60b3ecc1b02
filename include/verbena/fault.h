// Fault injection: how a system behaves when its fabric misbehaves, on any device and on purpose.
//
// A device that is opened with a plan works as before, except that now and then it delays, holds
// back, splits or breaks something, as an RNIC under load, a slow peer or a bad cable would.
// Nothing above the device can tell the difference. A device that is opened without one costs
// nothing more.
//
//   FaultPlan plan;
//   plan.seed = 7;
//   plan.delay = {.probability = 0.01, .duration_ns = 50'000};
//   auto device = verbena::Device::open("soft0", plan);
//
// or, for programs as they are, in the environment:
//
//   VERBENA_FAULTS="seed=7,delay=0.01:50us,rnr=0.001:1ms,queue_pair_error=1e-6" my_program
//
// What is kept: a queue's order, its depth (work that is deferred counts), every work request and
// its completion. Errors that a device can only find late come as completions. For the death of a
// peer, kill its process.
//
// Replay: each queue draws from the seed and its number (in order of making), once per work request
// or completion. The same program with the same seed meets the same faults in each queue; how the
// queues interleave is up to the threads.
//
// Threading: as without faults. A plan with durations starts one thread per device, which posts
// later what was deferred. Work that goes around ibv_post_send, ibv_post_recv, ibv_post_srq_recv
// and ibv_poll_cq (ibv_wr_start and the like) meets no faults, as do objects that were not made
// through verbena/device.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "verbena/status.h"

namespace verbena {

class Device;

// With which probability, from 0 to 1, and for how long.
struct Fault {
  double probability = 0;
  uint64_t duration_ns = 0;
};

struct FaultPlan {
  uint64_t seed = 1;
  // Of a work request of a send queue: it is posted so much later, and so is what comes behind it.
  Fault delay;
  // Of a receive, an own or a shared one: messages meet an empty queue meanwhile (RNR).
  Fault rnr;
  // Of a completion: polling returns those before it, and then nothing for so long.
  Fault completion_delay;
  // Of a work request of a send queue: about when it is posted, its queue pair goes to the error
  // state.
  double queue_pair_error = 0;

  // "seed=7,delay=0.01:50us,rnr=0.001:1ms,completion_delay=0.01:20us,queue_pair_error=1e-6", each
  // part optional; durations in ns, us, ms or s. kInvalidArgument names the part that is wrong.
  static Result<FaultPlan> parse(std::string_view text);
  // The plan in VERBENA_FAULTS; none where it is not set or empty.
  static Result<std::optional<FaultPlan>> from_environment();
  // The inverse of parse().
  std::string text() const;
};

// What was injected so far, in work requests, receives, completions and queue pairs.
struct FaultCounts {
  uint64_t delays = 0;
  uint64_t deferred_receives = 0;
  uint64_t delayed_completions = 0;
  uint64_t queue_pair_errors = 0;
};

// All zero for a device without a plan.
FaultCounts injected_faults(const Device& device);

}  // namespace verbena
