// How a sender meets a receive of its peer, and tells of what it has sent: taking receives, placing
// payloads into them, packets. Holds send_lock, within a Flight.
#pragma once

#include <atomic>
#include <cstdint>

#include "src/base/assert.h"
#include "src/base/shared_memory.h"
#include "src/device/soft/peer_memory.h"

namespace verbena::soft {

// The peer's receive that a message meets.
struct Taken {
  const SharedReceive* receive = nullptr;
  uint16_t index = 0;  // in a shared receive queue
};

// Takes the head of a shared receive queue and marks it with the queue pair number `mark`, see
// make_claim(). False if it is empty.
bool take_shared_receive(PeerSrq& srq, uint32_t mark, Taken& taken);

// Whether a message fits into a receive. Its owner may have found its memory not registered.
inline bool has_room(const SharedReceive& receive, uint32_t size_bytes) {
  const uint32_t length_bytes = load_relaxed(&receive.length_bytes);
  return length_bytes != kReceiveInvalid && size_bytes <= length_bytes;
}

// Whether the peer's next receive is there; refreshes what is known of its queue.
inline bool have_credit(PeerQp& peer) {
  PeerReceives& receives = peer.receives;
  if (receives.next != receives.known) [[likely]]
    return true;
  // Acquire: the receives behind the credits are visible.
  const uint64_t credits = peer.shared->connection.credits.load(std::memory_order_acquire);
  const auto known = static_cast<uint32_t>(credits);
  // None, or more than the queue has places for, which only a broken peer says: it has none either.
  if (known - receives.next - 1 > receives.mask) return false;
  receives.known = known;
  receives.shortest_bytes = static_cast<uint32_t>(credits >> 32);
  return true;
}

// Only with a shared receive queue can a queue pair have more packets under way than it has room
// for.
inline bool have_packet_room(PeerQp& peer) {
  PeerPackets& packets = peer.packets;
  if (packets.next - packets.known_consumed <= packets.mask) [[likely]]
    return true;
  // Acquire: the peer is done with the packets that it consumed.
  packets.known_consumed = peer.shared->connection.consumed.load(std::memory_order_acquire);
  return packets.next - packets.known_consumed <= packets.mask;
}

// Whether there is a receive, and room for the packet that tells of it; takes a shared one.
inline bool take_receive(Qp& qp, Taken& taken) {
  if (qp.peer.srq.shared == nullptr) return have_credit(qp.peer);
  return (qp.peer.srq.xrc != nullptr || have_packet_room(qp.peer)) &&
         take_shared_receive(qp.peer.srq, qp.peer.claim_number, taken);
}

// Places a payload into the buffers of a taken receive. kMisfit: they have less room than the
// receive says.
Copy scatter(Qp& qp, const SharedReceive& receive, const Pieces& pieces, RequestMemory& own);

// Tells the owner of a completion queue that something arrived for it.
inline void announce(Peer& process, const PeerCq& cq, bool solicited) {
  if (cq.ready_bit != kNoReadyBit) set_ready_bit(*cq.shared, cq.ready_bit);
  if (cq.has_channel) {
    // Store-load: either we see the queue armed, or its owner, who arms and then polls, sees what
    // arrived.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (cq.shared->armed.load(std::memory_order_relaxed) != 0) {
      ring_peer_channel(process, *cq.shared, solicited);
    }
  }
}

// The packet that will be published next, for a receive that was taken.
inline Packet& next_packet(PeerQp& peer, const Taken& taken) {
  if (peer.srq.xrc != nullptr) [[unlikely]]
    return peer.srq.packets[taken.index];
  return peer.packets.packets[peer.packets.next & peer.packets.mask];
}

// Tells an XRC shared receive queue of the packet of a receive that was taken. False if its owner
// has no place for the arrival, against the rules: then nobody hears of it.
bool publish_to_xrc(Qp& qp, Packet& packet);
// Gives up a message in whose middle the receiving queue pair has failed: the receive that it took
// completes as flushed.
void abandon_receive(Qp& qp, const Taken& taken);

// Publishes the next packet, for a receive that was taken. Its payload is in it already. False as
// from publish_to_xrc().
inline bool publish_packet(Qp& qp, uint8_t kind, const Taken& taken, uint32_t byte_count,
                           uint32_t immediate, uint32_t inline_bytes) {
  PeerQp& peer = qp.peer;
  Packet& packet = next_packet(peer, taken);
  packet.byte_count = byte_count;
  packet.immediate = immediate;
  packet.receive_index = taken.index;
  packet.kind = kind;
  packet.inline_bytes = static_cast<uint8_t>(inline_bytes);
  VERBENA_DEBUG_ASSERT(inline_bytes <= kPacketInlineBytes);
  if (peer.srq.xrc != nullptr) [[unlikely]]
    return publish_to_xrc(qp, packet);
  VERBENA_DEBUG_ASSERT(peer.srq.shared != nullptr
                           ? peer.packets.next - peer.packets.known_consumed <= peer.packets.mask
                           : peer.receives.next != peer.receives.known);
  // Release: a receiver that sees the mark sees the packet, and the data that was placed before it.
  packet.mark.store(++peer.packets.next, std::memory_order_release);
  ++peer.receives.next;
  announce(*peer.memory, peer.cq, (kind & kPacketSolicited) != 0);
  return true;
}

}  // namespace verbena::soft
