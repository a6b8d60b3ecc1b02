// When a reliable connection cannot go on: sends that wait for their peer, and what the two ends
// tell each other of errors.
//
// A send that finds no receive waits as after an RNR NAK, one that finds its peer not ready as
// after a lost packet; the limits are those of the InfiniBand specification (9.7.5.2.8, 9.9.2.1).
// It is tried again by every poll of its completion queue, and by the service thread for owners
// that sleep.
#include "src/base/log.h"
#include "src/device/soft/rc.h"

namespace verbena::soft {
namespace {

using Reason = WaitingSends::Reason;

// InfiniBand specification, table 45 (RNR NAK timer field), in units of 10 us.
constexpr uint32_t kRnrTimer10us[32] = {65536, 1,    2,    3,     4,     6,     8,     12,
                                        16,    24,   32,   48,    64,    96,    128,   192,
                                        256,   384,  512,  768,   1024,  1536,  2048,  3072,
                                        4096,  6144, 8192, 12288, 16384, 24576, 32768, 49152};

constexpr uint64_t kWithoutEnd = ~0ull;

// Retries come one RNR timer after the other; without any, the first NAK is the last.
uint64_t receiver_patience_ns(const Qp& qp) {
  if (qp.attributes.rnr_retry == 7) return kWithoutEnd;
  return rnr_timer_ns(qp) * qp.attributes.rnr_retry;
}

uint64_t peer_patience_ns(const Qp& qp) {
  if (qp.attributes.timeout == 0) return kWithoutEnd;
  return retransmission_time_ns(qp) * (qp.attributes.retry_cnt + 1u);
}

Reason reason_of(Outcome outcome) {
  return outcome == Outcome::kWaitReceiver ? Reason::kReceiver : Reason::kPeer;
}

void start_waiting(Qp& qp, Reason reason) {
  if (qp.waiting.reason == reason) return;
  qp.waiting.reason = reason;
  const uint64_t patience_ns =
      reason == Reason::kReceiver ? receiver_patience_ns(qp) : peer_patience_ns(qp);
  qp.waiting.deadline_ns = patience_ns == kWithoutEnd ? 0 : now_ns() + patience_ns;
}

}  // namespace

uint64_t rnr_timer_ns(const Qp& qp) {
  const uint32_t timer =
      qp.peer.shared == nullptr
          ? 0
          : qp.peer.shared->reliable.min_rnr_timer.load(std::memory_order_relaxed) & 31;
  return uint64_t{kRnrTimer10us[timer]} * 10'000;
}

uint64_t retransmission_time_ns(const Qp& qp) {
  return qp.attributes.timeout == 0 ? 0 : 4096ull << qp.attributes.timeout;
}

void enqueue_waiting(Qp& qp, const ibv_send_wr& wr, uint32_t position, Outcome outcome) {
  const bool first = qp.waiting.empty();
  qp.waiting.push(wr, position);
  ++qp.counters->waits;
  if (!first) return;
  start_waiting(qp, reason_of(outcome));
  qp.waiting.last_retry_ns.store(now_ns(), std::memory_order_relaxed);
  qp.send_cq->waiting.fetch_add(1, std::memory_order_relaxed);
  qp.rnic->begin_waiting();
}

void drop_waiting(Qp& qp) {
  qp.waiting.pop();
  if (!qp.waiting.empty()) return;
  end_use(qp.send_cq->waiting);
  qp.rnic->end_waiting();
}

void retry_waiting(Qp& qp) {
  const OwnerLock::Guard guard(qp.send_lock);
  while (!qp.waiting.empty() && qp.state.load(std::memory_order_relaxed) == IBV_QPS_RTS) {
    const WaitingSend& first = qp.waiting.front();
    Execution execution = execute(qp, first.wr);
    if (execution.outcome() == Outcome::kWaitReceiver ||
        execution.outcome() == Outcome::kWaitPeer) {
      const Reason reason = reason_of(execution.outcome());
      start_waiting(qp, reason);
      const uint64_t now = now_ns();
      qp.waiting.last_retry_ns.store(now, std::memory_order_relaxed);
      const bool dead = qp.peer.process != nullptr && qp.peer.process->dead();
      if (!dead && (qp.waiting.deadline_ns == 0 || now < qp.waiting.deadline_ns)) return;
      execution = {Outcome::kError, reason == Reason::kReceiver && !dead ? IBV_WC_RNR_RETRY_EXC_ERR
                                                                         : IBV_WC_RETRY_EXC_ERR};
    }
    const ibv_send_wr wr = first.wr;
    const uint32_t position = first.position;
    drop_waiting(qp);
    finish_send(qp, wr, position, execution);
  }
}

void retry_waiting_of(Cq& cq) {
  std::lock_guard guard(cq.senders_mutex);
  for (Qp* qp : cq.senders) {
    if (!qp->waiting.empty()) retry_waiting(*qp);
  }
}

void flush_waiting(Qp& qp, ibv_wc_status first) {
  while (!qp.waiting.empty()) {
    const ibv_send_wr wr = qp.waiting.front().wr;
    const uint32_t position = qp.waiting.front().position;
    drop_waiting(qp);
    ++qp.counters->errors;
    complete_send(qp, wr, position, first, 0);
    first = IBV_WC_WR_FLUSH_ERR;
  }
}

void blame_peer(Qp& qp, ibv_event_type event) {
  const auto generation = static_cast<uint32_t>(qp.peer.gate_ready >> 32);
  qp.peer.shared->reliable.fault.store(make_fault(generation, event), std::memory_order_release);
  qp.peer.process->wake_service();
}

void accept_blame(Qp& qp) {
  std::atomic<uint64_t>& word = qp.shared->reliable.fault;
  // Acquire: who finds that another thread has accepted it sees the error state, too.
  if (word.load(std::memory_order_acquire) == 0) return;
  const OwnerLock::Guard guard(qp.send_lock);
  uint64_t fault = word.load(std::memory_order_acquire);
  if (fault == 0) return;
  // The peer's word decides between these events; any other, of another object even, would confuse
  // the program.
  const auto said = static_cast<uint32_t>(fault);
  const ibv_event_type event = said == IBV_EVENT_QP_ACCESS_ERR || said == IBV_EVENT_QP_REQ_ERR
                                   ? static_cast<ibv_event_type>(said)
                                   : IBV_EVENT_QP_FATAL;
  if (fault >> 32 == qp.generation) fail_queue_pair_locked(qp, IBV_WC_WR_FLUSH_ERR, event);
  // Release, and only now, see above. One that came meanwhile stays.
  word.compare_exchange_strong(fault, 0, std::memory_order_release, std::memory_order_relaxed);
}

void peer_ended(Qp& qp) {
  // A peer has left in order if it destroyed its queue pair before it ended, or reset it for
  // another one than this.
  const ibv_qp_state state = qp.state.load(std::memory_order_relaxed);
  const bool connected = state == IBV_QPS_RTR || state == IBV_QPS_RTS;
  const uint64_t gate = qp.peer.shared->gate.load(std::memory_order_acquire);
  const bool left_in_order =
      gate >> 32 != qp.peer.generation && (gate_peer(gate) != qp.number || !qp.peer.is_the_one());
  // Nobody tells an unreliable connection: what it sends vanishes.
  const bool reliable = is_reliable(qp.transport);
  if (reliable && connected && (!left_in_order || !qp.waiting.empty())) {
    log_info("soft0: queue pair {:#x}: process {} of its peer {:#x} has ended", qp.number,
             qp.peer.process->pid(), qp.attributes.dest_qp_num);
    fail_queue_pair(qp, IBV_WC_RETRY_EXC_ERR, IBV_EVENT_QP_FATAL);
  }
  // Also of a queue pair that had failed before: the peer may have died with a receive in its
  // hands.
  if (qp.srq != nullptr) reclaim_shared_receives(qp, false);
}

}  // namespace verbena::soft
