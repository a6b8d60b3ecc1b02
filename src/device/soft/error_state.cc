// The states of a queue pair as peers see them, the error state, and the events that follow.
#include <unistd.h>

#include <deque>

#include "src/device/soft/faults/faults.h"
#include "src/device/soft/objects.h"
#include "src/device/soft/rc.h"

namespace verbena::soft {

void set_state(Qp& qp, ibv_qp_state state) {
  qp.state.store(state, std::memory_order_relaxed);
  qp.verbs.state = state;
  qp.attributes.qp_state = state;
  qp.counters->state.store(static_cast<uint16_t>(state), std::memory_order_relaxed);
  qp.counters->peer.store(qp.attributes.dest_qp_num, std::memory_order_relaxed);
  // Release: a peer that finds the gate open finds everything that was set up before.
  qp.shared->gate.store(make_gate(qp.generation, qp.attributes.dest_qp_num, state),
                        std::memory_order_release);
}

void fail_queue_pair_locked(Qp& qp, ibv_wc_status first, int event) {
  const ibv_qp_state state = qp.state.load(std::memory_order_relaxed);
  if (state == IBV_QPS_ERR || state == IBV_QPS_RESET) return;
  set_state(qp, IBV_QPS_ERR);
  const bool any_waiting = !qp.waiting.empty();
  flush_waiting(qp, first);
  const bool any_deferred = faults::flush(qp, any_waiting ? IBV_WC_WR_FLUSH_ERR : first);
  if (!any_waiting && !any_deferred) qp.next_flush = first;
  start_flushing(qp);
  if (event != kNoEvent) raise_event(static_cast<ibv_event_type>(event), qp);
  if (qp.srq != nullptr) raise_event(IBV_EVENT_QP_LAST_WQE_REACHED, qp);
}

void fail_send_queue_locked(Qp& qp) {
  VERBENA_DEBUG_ASSERT(!is_reliable(qp.transport));
  if (qp.state.load(std::memory_order_relaxed) != IBV_QPS_RTS) return;
  // To peers it stays RTS, so the gate stays as it is.
  qp.state.store(IBV_QPS_SQE, std::memory_order_relaxed);
  qp.verbs.state = IBV_QPS_SQE;
  qp.attributes.qp_state = IBV_QPS_SQE;
  qp.counters->state.store(IBV_QPS_SQE, std::memory_order_relaxed);
}

void fail_queue_pair(Qp& qp, ibv_wc_status first, int event) {
  const OwnerLock::Guard guard(qp.send_lock);
  fail_queue_pair_locked(qp, first, event);
}

void raise_event(const ibv_context* verbs, ibv_event_type type, void* object) {
  // More are dropped, as by a real device's bounded event queue.
  constexpr size_t kMaxEvents = 4096;
  Context& context = as_context(const_cast<ibv_context*>(verbs));
  const std::lock_guard guard(context.events_mutex);
  if (context.events.size() < kMaxEvents) context.events.push_back({type, object});
  // A full pipe is readable as it is.
  [[maybe_unused]] const ssize_t written = write(context.event_write_fd, "", 1);
}

namespace {

void write_event(Cq& cq, uint32_t armed) {
  if (!cq.shared->armed.compare_exchange_strong(armed, 0)) return;
  const uint64_t cookie = cq.id;
  [[maybe_unused]] const ssize_t written = write(cq.channel->write_fd, &cookie, sizeof(cookie));
}

}  // namespace

void ring_own_channel(Cq& cq, bool solicited) {
  if (cq.channel == nullptr) return;
  uint32_t armed = cq.shared->armed.load(std::memory_order_relaxed);
  if (armed == 0 || (armed == kArmedSolicited && !solicited)) return;
  write_event(cq, armed);
}

void ring_abandoned_channel(Cq& cq) {
  if (cq.channel == nullptr) return;
  const uint32_t armed = cq.shared->armed.load(std::memory_order_relaxed);
  if (is_ringing(armed)) write_event(cq, armed);
}

}  // namespace verbena::soft
