// The time in which a queue pair, as an initiator, touches memory of its peer.
#pragma once

#include "src/base/assert.h"
#include "src/device/soft/objects.h"

namespace verbena::soft {

// Whoever takes memory or queues away from peers waits for a flight's end (Rnic::quiesce_peers).
// Holds send_lock.
class Flight {
 public:
  explicit Flight(Qp& qp) : qp_(qp) { begin(qp_); }
  ~Flight() { end(qp_); }
  // Ends the flight of `qp` and begins the next one: whoever waits for it goes on. The caller
  // checks again what it may touch.
  static void renew(Qp& qp) {
    end(qp);
    begin(qp);
  }
  Flight(const Flight&) = delete;
  Flight& operator=(const Flight&) = delete;

 private:
  static void begin(Qp& qp) {
    const uint64_t next = step(qp, std::memory_order_relaxed);
    VERBENA_DEBUG_ASSERT(next % 2 == 1);
    // Pairs with heavy_fence_all() in quiesce_peers(): either this flight sees what was taken away,
    // or whoever took it sees the flight.
    light_fence();
  }
  static void end(Qp& qp) {
    // Release: whoever sees the end sees no store of this flight after it.
    const uint64_t next = step(qp, std::memory_order_release);
    VERBENA_DEBUG_ASSERT(next % 2 == 0);
  }
  static uint64_t step(Qp& qp, std::memory_order order) {
    const uint64_t next = qp.flight.load(std::memory_order_relaxed) + 1;
    qp.flight.store(next, order);
    qp.shared->in_flight.store(next, order);
    return next;
  }
  Qp& qp_;
};

}  // namespace verbena::soft
