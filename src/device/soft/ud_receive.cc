// What a poll makes of the datagrams that have arrived.
#include <algorithm>

#include "src/base/shared_memory.h"
#include "src/device/soft/arrivals.h"
#include "src/device/soft/datagram_ring.h"
#include "src/device/soft/peer_receives.h"
#include "src/device/soft/presentation.h"
#include "src/device/soft/region_view.h"
#include "src/device/soft/ud.h"

namespace verbena::soft {
namespace {

// So many polls in vain in a row: only then what lies behind an unfinished datagram is looked for,
// because the look takes a cache line from the senders.
constexpr uint32_t kPollsBeforeLook = 1024;

// Puts bytes into the buffers of a receive, from `offset` on. False if one of them is not
// registered any more, or gone.
bool place(const Qp& qp, const PostedReceive& receive, uint32_t offset, const std::byte* bytes,
           uint32_t size_bytes) {
  const uint32_t domain = qp.srq != nullptr ? qp.srq->domain : qp.domain;
  for (uint32_t i = 0; i < receive.sge_count && size_bytes > 0; ++i) {
    const ibv_sge& sge = receive.sges[i];
    if (offset >= sge.length) {
      offset -= sge.length;
      continue;
    }
    const uint32_t part = std::min(sge.length - offset, size_bytes);
    std::byte* to = usable_memory(qp.regions, domain, sge.addr + offset, part, sge.lkey,
                                  IBV_ACCESS_LOCAL_WRITE);
    if (to == nullptr) return false;
    copy_bytes(to, bytes, part);
    bytes += part;
    size_bytes -= part;
    offset = 0;
  }
  return size_bytes == 0;
}

// The next receive, which nobody else gets; null if there is none.
PostedReceive* claim_own_receive(Qp& qp, uint16_t* index) {
  if (qp.srq == nullptr) return qp.receives.oldest();
  Srq& srq = *qp.srq;
  Taken taken;
  PeerSrq own{.shared = srq.shared,
              .ring = srq.ring,
              .receives = srq.shared_receives,
              .ring_mask = srq.ring_mask,
              .receive_count = srq.depth,
              .stride_bytes = srq.shared_receive_stride_bytes};
  if (!take_shared_receive(own, qp.number, taken) || taken.index >= srq.depth ||
      !srq.receives[taken.index].posted.load(std::memory_order_acquire)) {
    return nullptr;
  }
  *index = taken.index;
  return &srq.receives[taken.index];
}

// Which a receive has before the message.
uint32_t header_bytes_of(const Qp& qp) {
  return qp.transport == Transport::kRawPacket ? 0 : kGrhBytes;
}

void complete(Qp& qp, const Datagram& datagram, const std::byte* payload,
              const PostedReceive& receive, ibv_wc& wc) {
  // Once each: a broken sender may change them while they are checked.
  const uint32_t size_bytes = load_relaxed(&datagram.size_bytes);
  const uint8_t flags = load_relaxed(&datagram.flags);
  const uint8_t origin = load_relaxed(&datagram.origin);
  const uint32_t header_bytes = header_bytes_of(qp);
  const uint32_t grh_bytes = (flags & kDatagramWithGrh) != 0 ? header_bytes : 0;
  const uint32_t most_bytes = header_bytes == 0 ? kMaxFrameBytes : kMaxDatagramBytes;
  fill_completion(qp, receive.wr_id, IBV_WC_SUCCESS, wc);
  wc.byte_len = header_bytes + size_bytes;
  wc.src_qp = load_relaxed(&datagram.source_qp) & 0xffffff;
  // Ethernet has no LIDs.
  wc.slid = link_layer_of(qp.validity.context) == LinkLayer::kInfiniBand
                ? lid_of(origin >> kServiceLevelBits)
                : uint16_t{0};
  wc.sl = origin & kServiceLevelMask;
  wc.wc_flags = grh_bytes != 0 ? IBV_WC_GRH : 0;
  if ((flags & kDatagramWithImmediate) != 0) {
    wc.wc_flags |= IBV_WC_WITH_IMM;
    wc.imm_data = load_relaxed(&datagram.immediate);
  }
  const std::byte* bytes =
      grh_bytes + size_bytes <= kInlineDatagramBytes ? datagram.bytes : payload;
  if (size_bytes > most_bytes || header_bytes + size_bytes > receive.length_bytes) [[unlikely]] {
    wc.status = IBV_WC_LOC_LEN_ERR;
    wc.byte_len = 0;  // a broken sender may have written any size
  } else if (!place(qp, receive, header_bytes - grh_bytes, bytes, grh_bytes + size_bytes))
      [[unlikely]] {
    wc.status = IBV_WC_LOC_PROT_ERR;
  }
}

// A datagram that its receive has no room for. It vanishes, and the receive stays (InfiniBand
// specification, table of the responder's errors, class D), or every stranger could end the queue
// pair; one of a shared receive queue is taken already (class E).
bool vanishes(const Qp& qp, const Datagram& datagram, const PostedReceive& receive) {
  const uint32_t size_bytes = load_relaxed(&datagram.size_bytes);
  return qp.transport == Transport::kDatagram && qp.srq == nullptr &&
         (size_bytes > kMaxDatagramBytes || kGrhBytes + size_bytes > receive.length_bytes);
}

// Somebody has to see to the sender whose datagram is not finished.
void look_after(Qp& qp) {
  if (!qp.looked_after.exchange(true)) qp.rnic->begin_waiting();
}

bool has_ended(const Rnic& rnic, uint32_t sender) {
  const uint32_t slot = slot_of(sender);
  return slot != rnic.slot() &&
         rnic.registry().find(slot).status().code() == StatusCode::kUnavailable;
}

// A poll passes what was given up. More may have arrived behind it than can be taken before it.
void ask_for_poll(Qp& qp) {
  if (qp.ready_bit != kNoReadyBit) set_ready_bit(*qp.recv_cq->shared, qp.ready_bit);
  ring_own_channel(*qp.recv_cq, true);
}

}  // namespace

bool ud_take(Qp& qp, ibv_wc& wc, Broken& broken) {
  DatagramRing& ring = *qp.datagrams;
  if (ring.arrived()) {
    qp.polls_in_vain = 0;
  } else if (qp.ready_bit == kNoReadyBit && qp.recv_cq->channel == nullptr && !ring.held_up() &&
             ++qp.polls_in_vain % kPollsBeforeLook != 0) {
    // With a ready bit, the next call comes after the next arrival.
    return false;
  }
  if (qp.arrivals.closed) [[unlikely]]
    return false;
  uint32_t position = 0;
  // At most once around the ring, in case of a broken sender.
  for (uint32_t step = 0; step < ring.slots() && ring.find(&position); ++step) {
    const Datagram& datagram = ring.at(position);
    uint16_t index = 0;
    PostedReceive* receive = nullptr;
    // What was meant for the queue pair before a reset, and what met no receive, vanishes.
    if (load_relaxed(&datagram.receiver_generation) == qp.generation)
      receive = claim_own_receive(qp, &index);
    if (receive == nullptr || vanishes(qp, datagram, *receive)) {
      ++qp.counters->receive_dropped;
      ring.retire(position, true);
      continue;
    }
    complete(qp, datagram, ring.payload_at(position), *receive, wc);
    ++qp.counters->received;
    if (wc.status == IBV_WC_SUCCESS) [[likely]] {
      qp.counters->received_bytes += wc.byte_len - header_bytes_of(qp);
    } else {
      ++qp.counters->receive_errors;
      broken.set(qp, kNoEvent);
    }
    if (qp.srq == nullptr) {
      qp.receives.pop();
    } else {
      release_shared_receive(*qp.srq, *receive, index);
    }
    ring.retire(position, false);
    if (ring.held_up()) [[unlikely]]
      look_after(qp);
    return true;
  }
  if (ring.held_up()) [[unlikely]]
    look_after(qp);
  return false;
}

void DestroyDestinations::operator()(Destinations* destinations) const { delete destinations; }

void ud_look_after(Qp& qp) {
  if (!qp.looked_after.load(std::memory_order_relaxed)) return;
  bool ended = false;
  const bool held_up =
      qp.datagrams->give_up([&](uint32_t taker) { return ended = has_ended(*qp.rnic, taker); });
  if (ended) ask_for_poll(qp);
  if (held_up) return;
  ud_end_looking_after(qp);
  // A poll that met the next one meanwhile has left it to this look.
  if (qp.datagrams->give_up([](uint32_t) { return false; })) look_after(qp);
}

void ud_take_back(Qp& qp) {
  const uint32_t given_up =
      qp.datagrams->give_up_all([&qp](uint32_t taker) { return has_ended(*qp.rnic, taker); });
  if (given_up > 0) ask_for_poll(qp);
}

void ud_end_looking_after(Qp& qp) {
  if (qp.looked_after.exchange(false)) qp.rnic->end_waiting();
}

void ud_reset(Qp& qp) {
  *qp.destinations = Destinations(qp.transport);
  // What has arrived takes no receives that are posted later.
  DatagramRing& ring = *qp.datagrams;
  uint32_t position = 0;
  for (uint32_t i = 0; i < ring.slots() && ring.find(&position); ++i) ring.retire(position, true);
  ring.forbid();
}

}  // namespace verbena::soft
