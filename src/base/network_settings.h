// The network that the software RNIC pretends to have, as text: `verbena run --fault TEXT --link
// TEXT`, which reach it as VERBENA_FAULT and VERBENA_LINK. src/device/soft/faults does it.
//
//   VERBENA_FAULT="drop=1e-3,rnr=0.01,delay=0.01:50us,qp-error=1e-6,kill-after=5s,seed=7"
//   VERBENA_LINK="latency=2us,rate=100Gbps"
//
// Each part is optional. Durations are numbers with ns, us, ms or s; rates with bps, kbps, Mbps,
// Gbps or Tbps, which are powers of 1000.
#pragma once

#include <cstdint>
#include <string_view>

#include "verbena/status.h"

namespace verbena {

inline constexpr const char* kFaultVariable = "VERBENA_FAULT";
inline constexpr const char* kLinkVariable = "VERBENA_LINK";

// Probabilities are from 0 to 1.
struct FaultSettings {
  uint64_t seed = 1;
  double drop = 0;                   // of a packet
  double rnr = 0;                    // that a receiver is not ready for a message
  double delay = 0;                  // of an operation, by up to
  uint64_t longest_delay_ns = 0;     //   this
  double queue_pair_error = 0;       // of an operation
  uint64_t kill_after_requests = 0;  // the process ends by SIGKILL with that work request; 0: never
  uint64_t kill_after_ns = 0;        // so long after soft0 was opened; 0: never

  bool any() const {
    return drop > 0 || rnr > 0 || delay > 0 || queue_pair_error > 0 || kill_after_requests > 0 ||
           kill_after_ns > 0;
  }
};

struct LinkSettings {
  uint64_t latency_ns = 0;       // one way
  uint64_t rate_bits_per_s = 0;  // of each direction of the port; 0: without limit

  bool any() const { return latency_ns > 0 || rate_bits_per_s > 0; }
};

// kInvalidArgument names the part that is wrong, what is possible, and an example. An empty text is
// a network without faults.
Result<FaultSettings> parse_fault_settings(std::string_view text);
Result<LinkSettings> parse_link_settings(std::string_view text);

}  // namespace verbena
