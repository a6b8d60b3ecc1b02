// What has arrived at shared receive queues of XRC. Their senders have placed it; no queue pair is
// looked at, since the receiving one may be another process's.
#include <algorithm>

#include "src/device/soft/arrivals.h"
#include "src/device/soft/xrc.h"

namespace verbena::soft {
namespace {

void fill_xrc_completion(const PostedReceive& receive, const Packet& packet, uint32_t sender,
                         ibv_wc& wc) {
  wc = {};
  wc.wr_id = receive.wr_id;
  wc.status = IBV_WC_SUCCESS;
  wc.opcode = IBV_WC_RECV;
  wc.qp_num = packet.mark.load(std::memory_order_relaxed) & 0xffffff;
  wc.src_qp = sender;
}

// The next arrival, whose place it frees. False if it cannot be one: its sender broke the rules.
bool take_arrival(Srq& srq, ibv_wc& wc) {
  XrcQueue& xrc = *srq.xrc;
  const uint64_t position = xrc.next++;
  const auto index =
      static_cast<uint16_t>(xrc.arrivals[position & srq.ring_mask].load(std::memory_order_relaxed));
  // Release: before the receive can be posted again, and taken, there is a place for its arrival.
  xrc.arrivals[position & srq.ring_mask].store(make_free_place(position + srq.ring_mask + 1),
                                               std::memory_order_release);
  if (index >= srq.depth || !srq.receives[index].posted.load(std::memory_order_acquire))
    return false;
  const uint32_t taker =
      marked_number(srq.shared_receive(index).claim.load(std::memory_order_acquire));
  if (taker == 0) return false;
  PostedReceive& receive = srq.receives[index];
  const Packet& packet = xrc.packets[index];
  const PacketFields fields = read_fields(packet);
  fill_xrc_completion(receive, packet, taker, wc);
  complete_receive(srq.rnic->own_regions(), srq.domain, receive, packet, fields, wc);
  if ((fields.kind & kPacketWithImmediate) != 0) {
    wc.wc_flags = IBV_WC_WITH_IMM;
    wc.imm_data = load_relaxed(&packet.immediate);
  }
  release_shared_receive(srq, receive, index);
  return true;
}

int take_from(Srq& srq, int count, ibv_wc* wc) {
  const XrcQueue& xrc = *srq.xrc;
  int taken = 0;
  while (taken < count && xrc.arrived(srq.ring_mask)) {
    if (take_arrival(srq, wc[taken])) ++taken;
  }
  return taken;
}

}  // namespace

int take_xrc(Cq& cq, int count, ibv_wc* wc) {
  int taken = 0;
  const auto queues = static_cast<uint32_t>(cq.xrc_queues.size());
  for (uint32_t step = 0; step < queues && taken < count; ++step) {
    VERBENA_DEBUG_ASSERT(cq.next_xrc_queue < queues);
    taken += take_from(*cq.xrc_queues[cq.next_xrc_queue], count - taken, wc + taken);
    cq.next_xrc_queue = (cq.next_xrc_queue + 1) % queues;
  }
  return taken;
}

std::vector<uint64_t> claims_of(const Srq& srq, uint32_t slot) {
  std::vector<uint64_t> claims(srq.depth, 0);
  for (uint32_t index = 0; index < srq.depth; ++index) {
    const uint64_t claim = srq.shared_receive(index).claim.load(std::memory_order_acquire);
    if (marked_number(claim) != 0 && slot_of(marked_number(claim)) == slot) claims[index] = claim;
  }
  return claims;
}

namespace {

// Whether something has arrived that is not polled yet. Holds the completion queue's lock.
bool take_back(Srq& srq, const std::vector<uint64_t>& claims) {
  const XrcQueue& xrc = *srq.xrc;
  const OwnerLock::Guard srq_guard(srq.lock);
  std::vector<bool> delivered(srq.depth, false);
  for (uint64_t at = xrc.next; at - xrc.next <= srq.ring_mask; ++at) {
    const uint64_t found = xrc.arrivals[at & srq.ring_mask].load(std::memory_order_acquire);
    if (found >> 16 != (at << 1 | 1)) break;
    const auto index = static_cast<uint16_t>(found);
    if (index < srq.depth) delivered[index] = true;
  }
  for (uint32_t index = 0; index < srq.depth; ++index) {
    const uint64_t claim = claims[index];
    if (claim == 0 || claim != srq.shared_receive(index).claim.load(std::memory_order_acquire) ||
        !srq.receives[index].posted.load(std::memory_order_relaxed) || delivered[index]) {
      continue;
    }
    // It may have died before it moved the head on: its place in the ring is about to be reused.
    uint64_t position = claim >> 24;
    srq.shared->head.compare_exchange_strong(position, position + 1, std::memory_order_acq_rel);
    publish_shared_receive(srq, static_cast<uint16_t>(index));
  }
  return xrc.arrived(srq.ring_mask);
}

}  // namespace

void reclaim_xrc_receives(Srq& srq, const std::vector<uint64_t>& claims) {
  Cq& cq = *srq.xrc->cq;
  bool arrived = false;
  {
    const OwnerLock::Guard guard(cq.lock);
    arrived = take_back(srq, claims);
  }
  if (arrived) ring_own_channel(cq, true);
}

}  // namespace verbena::soft
