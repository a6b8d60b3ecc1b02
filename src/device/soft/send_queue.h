// How the send queue carries out, completes and retries its work requests: shared by posting and by
// recovery.
#pragma once

#include "src/device/soft/objects.h"

namespace verbena::soft {

enum class Outcome : uint8_t { kDone, kWaitReceiver, kWaitPeer, kError };

struct Execution {
  Outcome outcome;
  ibv_wc_status status = IBV_WC_SUCCESS;
  uint32_t size_bytes = 0;
};

// Marks the time in which this queue pair touches its peer's memory: whoever takes memory or queues
// away from peers waits for its end (Rnic::quiesce_peers).
class Flight {
 public:
  explicit Flight(Qp& qp) : qp_(qp) {
    qp_.shared->in_flight.store(++qp_.flight, std::memory_order_relaxed);
    light_fence();
  }
  ~Flight() { qp_.shared->in_flight.store(++qp_.flight, std::memory_order_release); }
  Flight(const Flight&) = delete;
  Flight& operator=(const Flight&) = delete;

 private:
  Qp& qp_;
};

// All hold send_lock. execute() does the work or says what it waits for; complete_send() tells the
// completion queue where that is due; finish_send() also draws the consequences of an error.
Execution execute(Qp& qp, const ibv_send_wr& wr);
void complete_send(Qp& qp, const ibv_send_wr& wr, uint32_t position, const Execution& execution);
void finish_send(Qp& qp, const ibv_send_wr& wr, uint32_t position, const Execution& execution);

}  // namespace verbena::soft
