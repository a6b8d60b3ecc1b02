#include "src/device/soft/arrivals.h"

#include <algorithm>

#include "src/base/shared_memory.h"
#include "src/device/soft/copy.h"
#include "src/device/soft/region_view.h"

namespace verbena::soft {
namespace {

// The receive that a packet says it took; null if that cannot be.
PostedReceive* receive_of(Qp& qp, uint16_t receive_index) {
  if (qp.srq == nullptr) return qp.receives.oldest();
  if (receive_index >= qp.srq->depth ||
      !qp.srq->receives[receive_index].posted.load(std::memory_order_acquire)) {
    return nullptr;
  }
  const uint64_t claim =
      qp.srq->shared_receive(receive_index).claim.load(std::memory_order_acquire);
  return marked_number(claim) == qp.number ? &qp.srq->receives[receive_index] : nullptr;
}

// Of the memory of its receives.
uint32_t receive_domain(const Qp& qp) { return qp.srq != nullptr ? qp.srq->domain : qp.domain; }

void release_receive(Qp& qp, PostedReceive& receive, uint16_t receive_index) {
  if (qp.srq == nullptr) return qp.receives.pop();
  // Release: the sender may overwrite the packets before this one.
  qp.shared->connection.consumed.store(qp.arrivals.next, std::memory_order_release);
  release_shared_receive(*qp.srq, receive, receive_index);
}

}  // namespace

bool deliver_inline(const RegionEntry* regions, uint32_t domain, const PostedReceive& receive,
                    const std::byte* payload, uint32_t size_bytes) {
  for (uint32_t i = 0; i < receive.sge_count && size_bytes > 0; ++i) {
    const ibv_sge& sge = receive.sges[i];
    const uint32_t part = std::min(sge.length, size_bytes);
    if (part == 0) continue;
    std::byte* bytes =
        usable_memory(regions, domain, sge.addr, part, sge.lkey, IBV_ACCESS_LOCAL_WRITE);
    if (bytes == nullptr) return false;
    copy_small(bytes, payload, part);
    payload += part;
    size_bytes -= part;
  }
  return size_bytes == 0;
}

void release_shared_receive(Srq& srq, PostedReceive& receive, uint16_t receive_index) {
  {
    const OwnerLock::Guard guard(srq.lock);
    // Only a peer that breaks the rules makes two polls complete the same receive.
    if (receive.posted.exchange(false, std::memory_order_relaxed)) {
      VERBENA_DEBUG_ASSERT(srq.free.size() < srq.depth);
      srq.free.push_back(receive_index);
    }
  }
  if (srq.limit != 0) [[unlikely]] {
    const uint64_t left = srq.shared->tail.load(std::memory_order_relaxed) -
                          srq.shared->head.load(std::memory_order_relaxed);
    if (left < srq.limit) {
      srq.limit = 0;
      raise_event(IBV_EVENT_SRQ_LIMIT_REACHED, srq);
    }
  }
}

// All that is checked elsewhere, in one place and in the order in which it decides.
bool complete_at_once(Qp& qp, ibv_wc& wc) {
  const Packet& packet = qp.arrivals.packet(qp.arrivals.next);
  const PacketFields fields = read_fields(packet);
  const uint32_t size_bytes = fields.inline_bytes;
  if ((fields.kind & ~kPacketSolicited) != kPacketSend || size_bytes == 0 ||
      size_bytes > kPacketInlineBytes || size_bytes != fields.byte_count ||
      !qp.arrivals.established) {
    return false;
  }
  PostedReceive* const receive = receive_of(qp, fields.receive_index);
  if (receive == nullptr || receive->sge_count == 0) return false;
  const ibv_sge& sge = receive->sges[0];
  if (size_bytes > sge.length) return false;
  std::byte* const bytes = usable_memory(qp.regions, receive_domain(qp), sge.addr, size_bytes,
                                         sge.lkey, IBV_ACCESS_LOCAL_WRITE);
  if (bytes == nullptr) return false;
  fill_completion(qp, receive->wr_id, IBV_WC_SUCCESS, wc);
  wc.byte_len = size_bytes;
  copy_small(bytes, packet.payload, size_bytes);
  ++qp.counters->received;
  qp.counters->received_bytes += size_bytes;
  ++qp.arrivals.next;
  release_receive(qp, *receive, fields.receive_index);
  return true;
}

bool complete_packet(Qp& qp, ibv_wc& wc, Broken& broken) {
  const Packet& packet = qp.arrivals.packet(qp.arrivals.next);
  const PacketFields fields = read_fields(packet);
  const uint8_t kind = fields.kind;

  PostedReceive* receive = receive_of(qp, fields.receive_index);
  if (receive == nullptr) [[unlikely]] {
    // The peer broke the rules of the ring: nothing from it can be trusted any more.
    broken.set(qp, IBV_EVENT_QP_FATAL);
    return false;
  }
  fill_completion(qp, receive->wr_id, IBV_WC_SUCCESS, wc);
  complete_receive(qp.regions, receive_domain(qp), *receive, packet, fields, wc);
  if ((kind & kPacketWithInvalidate) != 0) [[unlikely]] {
    // The sender could shut its own windows alone; here it is any that are open to it.
    const uint32_t key = load_relaxed(&packet.immediate);
    qp.rnic->regions().unbind_window(key, window_domain(qp.generation));
    wc.wc_flags = IBV_WC_WITH_INV;
    wc.invalidated_rkey = key;
  }
  if ((kind & kPacketWithImmediate) != 0) {
    wc.wc_flags = IBV_WC_WITH_IMM;
    wc.imm_data = packet.immediate;
  }
  ++qp.counters->received;
  if (wc.status == IBV_WC_SUCCESS) [[likely]] {
    qp.counters->received_bytes += fields.byte_count;
  } else {
    ++qp.counters->receive_errors;
    broken.set(qp, wc.status == IBV_WC_LOC_ACCESS_ERR ? IBV_EVENT_QP_ACCESS_ERR : kNoEvent);
  }
  if (!qp.arrivals.established) [[unlikely]] {
    qp.arrivals.established = true;
    // The peer is in RTS; this end may have been waiting to hear of that.
    if (qp.state.load(std::memory_order_relaxed) == IBV_QPS_RTR) {
      raise_event(IBV_EVENT_COMM_EST, qp);
    }
  }
  ++qp.arrivals.next;
  release_receive(qp, *receive, fields.receive_index);
  return true;
}

}  // namespace verbena::soft
