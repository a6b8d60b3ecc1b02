// Posting to the send queue, whatever the transport: state, depth and form of each request, and its
// completion. rc_send.cc, uc_send.cc and ud_send.cc carry them out.
#include <cerrno>
#include <utility>

#include "src/device/soft/faults/faults.h"
#include "src/device/soft/poll_pause.h"
#include "src/device/soft/raw.h"
#include "src/device/soft/rc.h"
#include "src/device/soft/refusal.h"
#include "src/device/soft/uc.h"
#include "src/device/soft/ud.h"
#include "src/device/soft/windows.h"

namespace verbena::soft {
namespace {

ibv_wc_opcode completion_opcode(ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      return IBV_WC_RDMA_WRITE;
    case IBV_WR_RDMA_READ:
      return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      return IBV_WC_COMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return IBV_WC_FETCH_ADD;
    case kAtomicWrite:
      return kAtomicWriteDone;
    case IBV_WR_BIND_MW:
      return IBV_WC_BIND_MW;
    case IBV_WR_LOCAL_INV:
      return IBV_WC_LOCAL_INV;
    default:
      return IBV_WC_SEND;
  }
}

bool well_formed(const Qp& qp, const ibv_send_wr& wr) {
  if (wr.num_sge < 0 || static_cast<uint32_t>(wr.num_sge) > qp.init.cap.max_send_sge) return false;
  uint64_t size_bytes = 0;
  for (int i = 0; i < wr.num_sge; ++i) size_bytes += wr.sg_list[i].length;
  const bool is_inline = (wr.send_flags & IBV_SEND_INLINE) != 0;
  return size_bytes <= kMaxMessageBytes && !(is_inline && size_bytes > qp.init.cap.max_inline_data);
}

// Adds a completion of own work. Returns false, and puts the queue into overrun, if there is no
// room. Compiled into its caller: a completion that is put together in memory and then copied waits
// until all bytes that were copied before it have left the store buffer.
inline bool push_completion(Cq& cq, const Completion& completion) {
  bool kept = false;
  {
    const OwnerLock::Guard guard(cq.lock);
    if (cq.overrun) [[unlikely]]
      return false;
    kept = !cq.completions.full();
    if (!kept && cq.ignores_overrun) [[unlikely]] {
      // The oldest one is lost, and its place in the send queue is free.
      const Completion& lost = cq.completions.front();
      lost.qp->send_retired.store(lost.send_position, std::memory_order_release);
      cq.completions.pop();
      kept = true;
    }
    if (kept) [[likely]] {
      cq.completions.push(completion);
    } else {
      cq.overrun = true;
    }
  }
  if (!kept) [[unlikely]] {
    raise_event(IBV_EVENT_CQ_ERR, cq);
    return false;
  }
  if (cq.channel != nullptr) ring_own_channel(cq, completion.status != IBV_WC_SUCCESS);
  return true;
}

// Its objects are looked at once more: those of a batch may have been destroyed since.
[[gnu::noinline, gnu::cold]] void post_window_request(Qp& qp, const ibv_send_wr& wr,
                                                      uint32_t position) {
  const ibv_wc_status status =
      check_window_request(wr) ? carry_out_window_request(qp, wr) : IBV_WC_MW_BIND_ERR;
  rc_post(qp, make_carried_out(wr, status), position);
}

bool accepts(const Qp& qp, const ibv_send_wr& wr) {
  if (qp.transport == Transport::kReliable) [[likely]]
    return rc_accepts(qp, wr);
  if (is_xrc(qp.transport)) return qp.transport == Transport::kXrcSend && rc_accepts(qp, wr);
  if (qp.transport == Transport::kRawPacket) return wr.opcode == IBV_WR_SEND;
  return qp.transport == Transport::kDatagram ? ud_accepts(qp, wr) : uc_accepts(wr);
}

}  // namespace

void carry_out(Qp& qp, const ibv_send_wr& wr, uint32_t position) {
  if (qp.transport == Transport::kReliable) [[likely]]
    return rc_post(qp, wr, position);
  if (qp.transport == Transport::kXrcSend) return rc_post(qp, wr, position);
  if (qp.transport == Transport::kRawPacket) return raw_post(qp, wr, position);
  return qp.transport == Transport::kDatagram ? ud_post(qp, wr, position)
                                              : uc_post(qp, wr, position);
}

namespace {

// What was checked.
inline void post_checked(Qp& qp, const ibv_send_wr& wr, ibv_qp_state state) {
  const uint32_t position = ++qp.send_posted;
  ++qp.counters->requests[wr.opcode];
  if (state != IBV_QPS_RTS) [[unlikely]] {
    ++qp.counters->errors;
    complete_send(qp, wr, position, std::exchange(qp.next_flush, IBV_WC_WR_FLUSH_ERR), 0);
    return;
  }
  if (is_window_request(wr.opcode)) [[unlikely]] {
    post_window_request(qp, wr, position);
  } else {
    carry_out(qp, wr, position);
  }
}

inline bool post_at_once(Qp& qp, const ibv_send_wr& wr, ibv_qp_state state) {
  if (state != IBV_QPS_RTS) [[unlikely]]
    return false;
  if (qp.transport == Transport::kReliable) [[likely]]
    return rc_post_at_once(qp, wr);
  return qp.transport == Transport::kDatagram && ud_post_at_once(qp, wr);
}

[[gnu::noinline]] int post_in_general(Qp& qp, const ibv_send_wr& wr, ibv_qp_state state,
                                      bool has_place) {
  if (state != IBV_QPS_RTS && state != IBV_QPS_ERR && state != IBV_QPS_SQE) return EINVAL;
  if (!has_place) return ENOMEM;
  if (!well_formed(qp, wr) || !accepts(qp, wr)) return EINVAL;
  if (is_window_request(wr.opcode) && !check_window_request(wr)) return EINVAL;
  post_checked(qp, wr, state);
  return 0;
}

inline int post_one(Qp& qp, const ibv_send_wr& wr) {
  const ibv_qp_state state = qp.state.load(std::memory_order_relaxed);
  // Acquire: the poll that freed a place is done with it.
  const uint32_t pending = qp.send_posted - qp.send_retired.load(std::memory_order_acquire);
  VERBENA_DEBUG_ASSERT(pending <= qp.send_depth);
  const bool has_place = pending < qp.send_depth;
  if (has_place && post_at_once(qp, wr, state)) [[likely]]
    return 0;
  return post_in_general(qp, wr, state, has_place);
}

}  // namespace

int check_sends(const Qp& qp, const ibv_send_wr* requests, uint32_t count) {
  const ibv_qp_state state = qp.state.load(std::memory_order_relaxed);
  if (state != IBV_QPS_RTS && state != IBV_QPS_ERR && state != IBV_QPS_SQE) return EINVAL;
  const uint32_t pending = qp.send_posted - qp.send_retired.load(std::memory_order_acquire);
  if (count > qp.send_depth - pending) return ENOMEM;
  for (uint32_t i = 0; i < count; ++i) {
    const ibv_send_wr& wr = requests[i];
    if (!well_formed(qp, wr) || !accepts(qp, wr) ||
        (is_window_request(wr.opcode) && !check_window_request(wr))) {
      return EINVAL;
    }
  }
  return 0;
}

void complete_send(Qp& qp, const ibv_send_wr& wr, uint32_t position, ibv_wc_status status,
                   uint32_t size_bytes) {
  VERBENA_DEBUG_ASSERT(qp.send_posted - position < qp.send_depth);
  const bool signaled = (wr.send_flags & IBV_SEND_SIGNALED) != 0 || qp.init.sq_sig_all != 0 ||
                        status != IBV_WC_SUCCESS;
  if (!signaled) return;
  const bool kept = push_completion(*qp.send_cq, {.wr_id = wr.wr_id,
                                                  .qp = &qp,
                                                  .status = status,
                                                  .opcode = completion_opcode(wr.opcode),
                                                  .byte_count = size_bytes,
                                                  .send_position = position});
  if (!kept && qp.state.load(std::memory_order_relaxed) != IBV_QPS_ERR) {
    fail_queue_pair_locked(qp, IBV_WC_WR_FLUSH_ERR, IBV_EVENT_QP_FATAL);
  }
}

namespace {

int post_batch_locked(Qp& qp, const ibv_send_wr* requests, uint32_t count) {
  if (count == 1) [[likely]]
    return post_one(qp, requests[0]);
  if (const int error = check_sends(qp, requests, count); error != 0) [[unlikely]]
    return error;
  for (uint32_t i = 0; i < count; ++i) {
    // One before it may have failed the queue pair.
    const ibv_qp_state state = qp.state.load(std::memory_order_relaxed);
    if (!post_at_once(qp, requests[i], state)) post_checked(qp, requests[i], state);
  }
  return 0;
}

// Who may sleep until what was posted completes. Holds send_lock: once that is free, a thread that
// has polled the completion may destroy the queue pair.
PollSleeper* poller_of(const Qp& qp) {
  // A destroyed queue pair has no completion queue.
  return qp.send_cq != nullptr ? qp.send_cq->poller.load(std::memory_order_relaxed) : nullptr;
}

void wake(PollSleeper* poller) {
  if (poller != nullptr) [[unlikely]]
    wake_poller(*poller);
}

}  // namespace

int post_batch(Qp& qp, const ibv_send_wr* requests, uint32_t count) {
  int error = 0;
  PollSleeper* poller = nullptr;
  {
    const OwnerLock::Guard guard(qp.send_lock);
    error = post_batch_locked(qp, requests, count);
    poller = poller_of(qp);
  }
  wake(poller);
  return error;
}

namespace {

int post_carried_out_locked(Qp& qp, const ibv_send_wr& wr) {
  const ibv_qp_state state = qp.state.load(std::memory_order_relaxed);
  if (state != IBV_QPS_RTS && state != IBV_QPS_ERR) return EINVAL;
  const uint32_t pending = qp.send_posted - qp.send_retired.load(std::memory_order_acquire);
  if (pending >= qp.send_depth) return ENOMEM;
  const uint32_t position = ++qp.send_posted;
  ++qp.counters->requests[wr.opcode];
  if (state == IBV_QPS_ERR) {
    ++qp.counters->errors;
    complete_send(qp, wr, position, std::exchange(qp.next_flush, IBV_WC_WR_FLUSH_ERR), 0);
  } else if (qp.faults != nullptr) {
    faults::post_carried_out(qp, wr, position);
  } else {
    rc_post(qp, wr, position);
  }
  return 0;
}

}  // namespace

int post_carried_out(Qp& qp, const ibv_send_wr& wr) {
  int error = 0;
  PollSleeper* poller = nullptr;
  {
    const OwnerLock::Guard guard(qp.send_lock);
    error = post_carried_out_locked(qp, wr);
    poller = poller_of(qp);
  }
  wake(poller);
  return error;
}

int post_send(ibv_qp* verbs, ibv_send_wr* wr, ibv_send_wr** bad) {
  Qp& qp = as_qp(verbs);
  int error = 0;
  PollSleeper* poller = nullptr;
  {
    const OwnerLock::Guard guard(qp.send_lock);
    for (; wr != nullptr; wr = wr->next) {
      error = post_one(qp, *wr);
      if (error != 0) [[unlikely]] {
        *bad = wr;
        log_refused_send(qp, *wr, error);
        break;
      }
    }
    poller = poller_of(qp);
  }
  wake(poller);
  return error;
}

}  // namespace verbena::soft
