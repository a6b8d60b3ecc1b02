// Posting receives: kept privately, and shown to the peers that will place data into them.
#include <algorithm>
#include <cerrno>

#include "src/device/soft/refusal.h"
#include "src/device/soft/region_view.h"

namespace verbena::soft {
namespace {

// Keeps a copy of a receive request and publishes it to senders. Senders check each SGE again when
// they use it; that it is checked here too lets them skip reading it for small messages.
void keep_receive(const RegionEntry* regions, uint32_t domain, const ibv_recv_wr& wr,
                  PostedReceive& kept, SharedReceive& shown) {
  SharedSge* const shown_sges = sges_of(shown);
  uint64_t length_bytes = 0;
  bool valid = true;
  for (int i = 0; i < wr.num_sge; ++i) {
    const ibv_sge& sge = wr.sg_list[i];
    kept.sges[i] = sge;
    shown_sges[i] = {sge.addr, sge.length, sge.lkey};
    length_bytes += sge.length;
    valid = valid && (sge.length == 0 || own_memory(regions, domain, sge.addr, sge.length, sge.lkey,
                                                    IBV_ACCESS_LOCAL_WRITE) != nullptr);
  }
  kept.wr_id = wr.wr_id;
  kept.sge_count = static_cast<uint32_t>(wr.num_sge);
  kept.length_bytes = static_cast<uint32_t>(std::min(length_bytes, kMaxMessageBytes));
  kept.posted.store(true, std::memory_order_release);
  shown.sge_count = kept.sge_count;
  shown.length_bytes = valid ? kept.length_bytes : kReceiveInvalid;
}

}  // namespace

int post_recv(ibv_qp* verbs, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  Qp& qp = as_qp(verbs);
  const OwnerLock::Guard guard(qp.recv_lock);
  const ibv_qp_state state = qp.state.load(std::memory_order_relaxed);
  // The shell of a destroyed queue pair is in RESET too: behind this point there are queues.
  if (state == IBV_QPS_RESET || qp.srq != nullptr) [[unlikely]] {
    *bad = wr;
    log_refused_receive(qp, wr, EINVAL);
    return EINVAL;
  }
  int error = 0;
  for (; wr != nullptr; wr = wr->next) {
    if (wr->num_sge < 0 || static_cast<uint32_t>(wr->num_sge) > qp.init.cap.max_recv_sge)
        [[unlikely]] {
      error = EINVAL;
    } else if (qp.receives.full()) [[unlikely]] {
      error = is_xrc(qp.transport) ? EINVAL : ENOMEM;
    }
    if (error != 0) [[unlikely]] {
      *bad = wr;
      log_refused_receive(qp, wr, error);
      break;
    }
    PostedReceive& kept = qp.receives.next_kept();
    SharedReceive& shown = qp.receives.next_shown();
    keep_receive(qp.regions, qp.domain, *wr, kept, shown);
    qp.receives.push(shown.length_bytes == kReceiveInvalid ? 0 : kept.length_bytes);
  }
  // Release: a sender that sees the credit sees the receive.
  qp.shared->connection.credits.store(qp.receives.publish(), std::memory_order_release);
  if (state == IBV_QPS_ERR) [[unlikely]]
    ring_own_channel(*qp.recv_cq, true);
  return error;
}

void publish_shared_receive(Srq& srq, uint16_t index) {
  VERBENA_DEBUG_ASSERT(index < srq.depth &&
                       srq.receives[index].posted.load(std::memory_order_relaxed));
  srq.shared_receive(index).claim.store(make_claim(srq.tail, 0), std::memory_order_relaxed);
  srq.ring[srq.tail & srq.ring_mask].store(srq.tail << 16 | index, std::memory_order_release);
  // Release: a sender that sees the new tail sees the receive.
  srq.shared->tail.store(++srq.tail, std::memory_order_release);
}

int post_srq_recv(ibv_srq* verbs, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  Srq& srq = as_srq(verbs);
  const OwnerLock::Guard guard(srq.lock);
  for (; wr != nullptr; wr = wr->next) {
    const bool malformed = wr->num_sge < 0 || static_cast<uint32_t>(wr->num_sge) > srq.max_sges;
    if (malformed || srq.free.empty()) [[unlikely]] {
      *bad = wr;
      log_refused_receive(srq, *wr, malformed ? EINVAL : ENOMEM);
      return malformed ? EINVAL : ENOMEM;
    }
    const uint16_t index = srq.free.back();
    srq.free.pop_back();
    VERBENA_DEBUG_ASSERT(index < srq.depth &&
                         !srq.receives[index].posted.load(std::memory_order_relaxed));
    keep_receive(srq.rnic->own_regions(), srq.domain, *wr, srq.receives[index],
                 srq.shared_receive(index));
    publish_shared_receive(srq, index);
  }
  return 0;
}

}  // namespace verbena::soft
