// What the network does to an operation. A queue pair draws from the seed and its ordinal, once per
// operation and kind of fault: the same posts meet the same faults, whichever others are on.
#pragma once

#include <cstdint>

#include "src/base/network_settings.h"
#include "src/base/runtime.h"

namespace verbena::soft::faults {

inline constexpr uint64_t kNever = UINT64_MAX;

// What decides how an operation gets over a fault.
struct Passage {
  bool reliable = true;
  bool takes_receive = false;
  uint64_t packets = 1;
  uint64_t timeout_ns = 0;  // until a lost packet is sent again; 0: never
  uint32_t retry_count = 7;
  uint64_t rnr_timer_ns = 0;
  uint32_t rnr_retry = 7;  // 7: for ever
};

enum class Ending : uint8_t {
  kDelivered,
  kLost,                // unreliable transports: nobody is told
  kRetriesExceeded,     // IBV_WC_RETRY_EXC_ERR
  kRnrRetriesExceeded,  // IBV_WC_RNR_RETRY_EXC_ERR
  kQueuePairError,      // IBV_EVENT_QP_FATAL
};

struct Fate {
  Ending ending = Ending::kDelivered;
  uint64_t extra_ns = 0;  // until it is delivered, or fails; kNever
  uint64_t delay_ns = 0;  // of it, by a delay
  uint32_t lost_packets = 0;
  uint32_t rnr_naks = 0;

  bool harmless() const { return ending == Ending::kDelivered && extra_ns == 0; }
};

class FateDraws {
 public:
  FateDraws(const FaultSettings& settings, uint32_t ordinal);
  Fate draw(const Passage& passage);

 private:
  void draw_losses(const Passage& passage, Fate& fate);
  void draw_naks(const Passage& passage, Fate& fate);
  uint64_t next_gap();

  const FaultSettings settings_;
  Random losses_;
  Random naks_;
  Random delays_;
  Random errors_;
  uint64_t until_loss_ = kNever;  // packets, the lost one included
};

// Never less than either.
inline uint64_t add_ns(uint64_t left, uint64_t right) {
  return left > kNever - right ? kNever : left + right;
}

}  // namespace verbena::soft::faults
