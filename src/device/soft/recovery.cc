// When something cannot go on: sends that wait for their peer, queue pairs that fail, and what
// follows from it.
//
// A send that finds no receive waits as after an RNR NAK, one that finds its peer not ready as
// after a lost packet; the limits are those of the InfiniBand specification (9.7.5.2.8, 9.9.2.1).
// It is tried again by every poll of its completion queue, and by the service thread for owners
// that sleep.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "src/base/log.h"
#include "src/device/soft/send_queue.h"

namespace verbena::soft {
namespace {

// InfiniBand specification, table 45 (RNR NAK timer field), in units of 10 us.
constexpr uint32_t kRnrTimer10us[32] = {65536, 1,    2,    3,     4,     6,     8,     12,
                                        16,    24,   32,   48,    64,    96,    128,   192,
                                        256,   384,  512,  768,   1024,  1536,  2048,  3072,
                                        4096,  6144, 8192, 12288, 16384, 24576, 32768, 49152};

constexpr uint64_t kWithoutEnd = ~0ull;

// Retries come one RNR timer after the other; without any, the first NAK is the last.
uint64_t receiver_patience_ns(const Qp& qp) {
  if (qp.attributes.rnr_retry == 7) return kWithoutEnd;
  const uint32_t timer = qp.peer.shared->min_rnr_timer.load(std::memory_order_relaxed) & 31;
  return uint64_t{kRnrTimer10us[timer]} * 10'000 * qp.attributes.rnr_retry;
}

uint64_t peer_patience_ns(const Qp& qp) {
  if (qp.attributes.timeout == 0) return kWithoutEnd;
  return (4096ull << qp.attributes.timeout) * (qp.attributes.retry_cnt + 1u);
}

void start_waiting(Qp& qp, Wait reason) {
  if (qp.wait == reason) return;
  qp.wait = reason;
  const uint64_t patience_ns =
      reason == Wait::kReceiver ? receiver_patience_ns(qp) : peer_patience_ns(qp);
  qp.wait_deadline_ns = patience_ns == kWithoutEnd ? 0 : now_ns() + patience_ns;
}

}  // namespace

void drop_waiting(Qp& qp) {
  qp.waiting_head = (qp.waiting_head + 1) % qp.send_depth;
  qp.wait = Wait::kNothing;
  if (qp.waiting_count.fetch_sub(1, std::memory_order_relaxed) == 1) {
    qp.send_cq->waiting.fetch_sub(1, std::memory_order_relaxed);
    qp.rnic->end_waiting();
  }
}

void set_state(Qp& qp, ibv_qp_state state) {
  qp.state.store(state, std::memory_order_relaxed);
  qp.verbs.state = state;
  qp.attributes.qp_state = state;
  // Release: a peer that finds the gate open finds everything that was set up before.
  qp.shared->gate.store(make_gate(qp.life, qp.attributes.dest_qp_num, state),
                        std::memory_order_release);
}

int enqueue_waiting(Qp& qp, const ibv_send_wr& wr, uint32_t position, Wait reason) {
  const uint32_t count = qp.waiting_count.load(std::memory_order_relaxed);
  const uint32_t place = (qp.waiting_head + count) % qp.send_depth;
  WaitingSend& kept = qp.waiting[place];
  kept.wr = wr;
  kept.wr.next = nullptr;
  kept.wr.sg_list = kept.sges;
  kept.position = position;
  std::byte* inline_at = kept.inline_data;
  for (int i = 0; i < wr.num_sge; ++i) {
    kept.sges[i] = wr.sg_list[i];
    if ((wr.send_flags & IBV_SEND_INLINE) != 0 && wr.sg_list[i].length > 0) {
      memcpy(inline_at, reinterpret_cast<const void*>(wr.sg_list[i].addr), wr.sg_list[i].length);
      kept.sges[i].addr = reinterpret_cast<uint64_t>(inline_at);
      inline_at += wr.sg_list[i].length;
    }
  }
  if (count == 0) {
    start_waiting(qp, reason);
    qp.last_retry_ns.store(now_ns(), std::memory_order_relaxed);
    qp.waiting_count.store(1, std::memory_order_relaxed);
    qp.send_cq->waiting.fetch_add(1, std::memory_order_relaxed);
    qp.rnic->begin_waiting();
  } else {
    qp.waiting_count.store(count + 1, std::memory_order_relaxed);
  }
  return 0;
}

void retry_waiting(Qp& qp) {
  const OwnerLock::Guard guard(qp.send_lock);
  while (qp.waiting_count.load(std::memory_order_relaxed) > 0 &&
         qp.state.load(std::memory_order_relaxed) == IBV_QPS_RTS) {
    const WaitingSend& first = qp.waiting[qp.waiting_head];
    Execution execution = execute(qp, first.wr);
    if (execution.outcome == Outcome::kWaitReceiver || execution.outcome == Outcome::kWaitPeer) {
      const Wait reason =
          execution.outcome == Outcome::kWaitReceiver ? Wait::kReceiver : Wait::kPeer;
      start_waiting(qp, reason);
      const uint64_t now = now_ns();
      qp.last_retry_ns.store(now, std::memory_order_relaxed);
      const bool dead = qp.peer.process != nullptr && qp.peer.process->dead();
      if (!dead && (qp.wait_deadline_ns == 0 || now < qp.wait_deadline_ns)) return;
      execution = {Outcome::kError, reason == Wait::kReceiver && !dead ? IBV_WC_RNR_RETRY_EXC_ERR
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
    if (qp->waiting_count.load(std::memory_order_relaxed) > 0) retry_waiting(*qp);
  }
}

void flush_waiting(Qp& qp, ibv_wc_status first) {
  while (qp.waiting_count.load(std::memory_order_relaxed) > 0) {
    const WaitingSend& send = qp.waiting[qp.waiting_head];
    const ibv_send_wr wr = send.wr;
    const uint32_t position = send.position;
    drop_waiting(qp);
    complete_send(qp, wr, position, {Outcome::kError, first});
    first = IBV_WC_WR_FLUSH_ERR;
  }
}

void fail_queue_pair_locked(Qp& qp, ibv_wc_status first, int event) {
  const ibv_qp_state state = qp.state.load(std::memory_order_relaxed);
  if (state == IBV_QPS_ERR || state == IBV_QPS_RESET) return;
  set_state(qp, IBV_QPS_ERR);
  if (qp.waiting_count.load(std::memory_order_relaxed) == 0) qp.next_flush = first;
  flush_waiting(qp, first);
  start_flushing(qp);
  if (event != kNoEvent) raise_event(qp.verbs.context, static_cast<ibv_event_type>(event), &qp);
  if (qp.srq != nullptr) raise_event(qp.verbs.context, IBV_EVENT_QP_LAST_WQE_REACHED, &qp);
}

void fail_queue_pair(Qp& qp, ibv_wc_status first, int event) {
  const OwnerLock::Guard guard(qp.send_lock);
  fail_queue_pair_locked(qp, first, event);
}

void blame_peer(Qp& qp, ibv_event_type event) {
  const auto life = static_cast<uint32_t>(qp.peer.gate_ready >> 32);
  qp.peer.shared->fault.store(make_fault(life, event), std::memory_order_release);
  qp.peer.process->wake_service();
}

void raise_event(ibv_context* context, ibv_event_type type, void* object) {
  // More are dropped, as by a real device's bounded event queue.
  constexpr size_t kMaxEvents = 4096;
  pthread_mutex_lock(&context->mutex);
  std::deque<AsyncEvent>& events = as_context(context).events;
  if (events.size() < kMaxEvents) events.push_back({type, object});
  // A full pipe is readable as it is.
  [[maybe_unused]] const ssize_t written = write(as_context(context).event_write_fd, "", 1);
  pthread_mutex_unlock(&context->mutex);
}

void ring_own_channel(Cq& cq, bool solicited) {
  if (cq.channel == nullptr) return;
  uint32_t armed = cq.shared->armed.load(std::memory_order_relaxed);
  if (armed == 0 || (armed == kArmedSolicited && !solicited)) return;
  if (!cq.shared->armed.compare_exchange_strong(armed, 0)) return;
  const uint64_t cookie = cq.id;
  [[maybe_unused]] const ssize_t written = write(cq.channel->write_fd, &cookie, sizeof(cookie));
}

}  // namespace verbena::soft
