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
    step(qp_, std::memory_order_relaxed);
    light_fence();
  }
  ~Flight() { step(qp_, std::memory_order_release); }
  // Ends the flight of `qp` and begins the next one: whoever waits for it goes on. The caller looks
  // again at what it may touch.
  static void renew(Qp& qp) {
    step(qp, std::memory_order_release);
    step(qp, std::memory_order_relaxed);
    light_fence();
  }
  Flight(const Flight&) = delete;
  Flight& operator=(const Flight&) = delete;

 private:
  static void step(Qp& qp, std::memory_order order) {
    const uint64_t next = qp.flight.load(std::memory_order_relaxed) + 1;
    qp.flight.store(next, order);
    qp.shared->in_flight.store(next, order);
  }
  Qp& qp_;
};

// All hold send_lock. execute() does the work or says what it waits for; complete_send() tells the
// completion queue where that is due; finish_send() also draws the consequences of an error.
Execution execute(Qp& qp, const ibv_send_wr& wr);
void complete_send(Qp& qp, const ibv_send_wr& wr, uint32_t position, const Execution& execution);
void finish_send(Qp& qp, const ibv_send_wr& wr, uint32_t position, const Execution& execution);

}  // namespace verbena::soft
