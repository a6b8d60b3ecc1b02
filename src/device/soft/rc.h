// Reliable connections: how the send queue carries out, retries and fails its work requests.
//
//   rc_send.cc        SEND, WRITE, READ and atomics
//   rc_at_once.cc     the short way of short SENDs and of WRITEs
//   rc_retry.cc       sends that wait for their peer; what peers learn of each other's errors
#pragma once

#include "src/device/soft/atomic_write.h"
#include "src/device/soft/objects.h"

namespace verbena::soft {

enum class Outcome : uint8_t { kDone, kWaitReceiver, kWaitPeer, kError };

// In one word, which is returned in a register: what is put together in memory and read again as a
// whole waits until all bytes that were copied before it have left the store buffer.
class Execution {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): an outcome is one
  constexpr Execution(Outcome outcome, ibv_wc_status status = IBV_WC_SUCCESS,
                      uint32_t size_bytes = 0)
      : word_(uint64_t{size_bytes} << 32 | uint64_t{status} << 8 | static_cast<uint8_t>(outcome)) {}

  constexpr Outcome outcome() const { return static_cast<Outcome>(word_ & 0xff); }
  constexpr ibv_wc_status status() const { return static_cast<ibv_wc_status>(word_ >> 8 & 0xff); }
  constexpr uint32_t size_bytes() const { return static_cast<uint32_t>(word_ >> 32); }

 private:
  uint64_t word_;
};

struct Taken;

// All hold send_lock, but for those that say otherwise.

// Whether a queue pair carries out requests of this kind at all.
inline bool rc_accepts(const Qp& qp, const ibv_send_wr& wr) {
  switch (wr.opcode) {
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
    case IBV_WR_SEND_WITH_INV:
    case IBV_WR_LOCAL_INV:
    case IBV_WR_BIND_MW:
      return true;
    case IBV_WR_RDMA_READ:
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return (wr.send_flags & IBV_SEND_INLINE) == 0 && qp.attributes.max_rd_atomic != 0;
    case kAtomicWrite:
      return wr.num_sge == 0 && qp.batch != nullptr;
    default:
      return false;
  }
}

// Carries out a request of the usual form, and counts it as posted: a WRITE of one piece, or a SEND
// that fits into its packet and meets a receive, where nothing waits. The queue pair is RTS and has
// a place. False: it is of another form, or it meets something else than what is open to it; nobody
// has seen anything of it.
bool rc_post_at_once(Qp& qp, const ibv_send_wr& wr);
// Posts and carries out a SEND of one packet that has taken a shared receive, whether that has room
// for it or not. Within a Flight.
void rc_post_taken(Qp& qp, const ibv_send_wr& wr, const Taken& taken);
// Carries out what was posted at `position`, or queues it behind others that wait.
void rc_post(Qp& qp, const ibv_send_wr& wr, uint32_t position);
// Does the work or says what it waits for; without telling the peer of an error. Within a Flight.
Execution execute_unblamed(Qp& qp, const ibv_send_wr& wr);
// The same, as a reliable connection does it.
Execution execute(Qp& qp, const ibv_send_wr& wr);
// Completes the request, and draws the consequences of an error.
void finish_send(Qp& qp, const ibv_send_wr& wr, uint32_t position, Execution execution);

// How long the initiator waits until it sends again: what its receiver was not ready for, and what
// no answer has come for (0: without end).
uint64_t rnr_timer_ns(const Qp& qp);
uint64_t retransmission_time_ns(const Qp& qp);

// Starts to wait for the peer with `wr` at the head of the send queue, or queues it behind others.
void enqueue_waiting(Qp& qp, const ibv_send_wr& wr, uint32_t position, Outcome outcome);
// Forgets the first waiting send.
void drop_waiting(Qp& qp);
void flush_waiting(Qp& qp, ibv_wc_status first);
// Tries again what waits in send queues: of one queue pair (takes send_lock), of all that complete
// into `cq`.
void retry_waiting(Qp& qp);
void retry_waiting_of(Cq& cq);

// Asks the peer's service thread to fail the connected queue pair with `event`. Within a Flight.
void blame_peer(Qp& qp, ibv_event_type event);
// Does what the peer has asked for so. Takes send_lock.
void accept_blame(Qp& qp);
// The process of the peer has ended. Takes send_lock. Holds Rnic::lock_links().
void peer_ended(Qp& qp);

}  // namespace verbena::soft
