// Connecting to a peer: what it says of its queue pair is checked before anything of it is used.
#include "src/device/soft/peer_queue_pair.h"

#include <fmt/format.h>

#include <bit>
#include <utility>

#include "src/base/shared_memory.h"
#include "src/device/soft/objects.h"

namespace verbena::soft {
namespace {

bool plausible_stride(uint32_t stride_bytes) {
  return stride_bytes >= sizeof(SharedReceive) &&
         stride_bytes <= shared_receive_stride_bytes(kMaxSges) &&
         stride_bytes % kCacheLineBytes == 0;
}

// A peer of this process is described by its private half. What stands in shared memory, where
// other peers can write, is not even read.
void link_within_process(const Qp& other, PeerQp& peer) {
  peer.regions = other.regions;
  peer.shared = other.shared;
  peer.generation = static_cast<uint32_t>(other.shared->gate.load(std::memory_order_acquire) >> 32);
  peer.domain = other.domain;
  peer.receive_domain = other.domain;
  if (is_xrc(other.transport)) return;  // requests name what they reach
  peer.cq = {other.recv_cq->shared, other.ready_bit, other.recv_cq->channel != nullptr};
  peer.packets = {.packets = other.arrivals.packets, .mask = other.arrivals.mask};
  if (const Srq* srq = other.srq; srq != nullptr) {
    peer.receive_domain = srq->domain;
    peer.srq = {.shared = srq->shared,
                .ring = srq->ring,
                .receives = srq->shared_receives,
                .ring_mask = srq->ring_mask,
                .receive_count = srq->depth,
                .stride_bytes = srq->shared_receive_stride_bytes};
  } else {
    peer.receives = {.receives = other.receives.shown(),
                     .mask = other.receives.mask(),
                     .stride_bytes = other.receives.stride_bytes()};
  }
}

}  // namespace

bool map_completion_queue(Peer& process, const QpShared& shared, PeerCq& cq) {
  cq.ready_bit = load_relaxed(&shared.ready_bit);
  if (cq.ready_bit != kNoReadyBit && cq.ready_bit >= kMaxQueuePairs) return false;
  cq.shared =
      map_array<CqShared>(process, load_relaxed(&shared.completion_queue), 1, sizeof(CqShared), 1);
  if (cq.shared == nullptr) return false;
  cq.has_channel = load_relaxed(&cq.shared->has_channel) != 0;
  return true;
}

bool map_shared_receive_queue(Peer& process, uint64_t address, PeerSrq& srq, uint32_t* domain) {
  srq.shared = map_array<SrqShared>(process, address, 1, sizeof(SrqShared), 1);
  if (srq.shared == nullptr) return false;
  const uint32_t ring_count = load_relaxed(&srq.shared->ring_count);
  srq.receive_count = load_relaxed(&srq.shared->receive_count);
  srq.stride_bytes = load_relaxed(&srq.shared->receive_stride_bytes);
  if (!std::has_single_bit(ring_count) || !plausible_stride(srq.stride_bytes)) return false;
  srq.ring_mask = ring_count - 1;
  *domain = load_relaxed(&srq.shared->domain);
  srq.ring = map_array<std::atomic<uint64_t>>(process, load_relaxed(&srq.shared->ring), ring_count,
                                              sizeof(uint64_t), kMaxQueueWrs);
  srq.receives = map_array<std::byte>(process, load_relaxed(&srq.shared->receives),
                                      srq.receive_count, srq.stride_bytes, kMaxQueueWrs);
  return srq.ring != nullptr && srq.receives != nullptr;
}

namespace {

// Each maps one part of what the peer published. False if it cannot be what it says.

bool map_packets(Peer& process, const ConnectionShared& shared, PeerPackets& packets) {
  const uint32_t count = load_relaxed(&shared.packet_count);
  if (!std::has_single_bit(count)) return false;
  packets.mask = count - 1;
  packets.packets = map_array<Packet>(process, load_relaxed(&shared.packets), count, sizeof(Packet),
                                      kMaxQueueWrs);
  return packets.packets != nullptr;
}

bool map_receives(Peer& process, const ConnectionShared& shared, PeerReceives& receives) {
  const uint32_t count = load_relaxed(&shared.receive_count);
  receives.stride_bytes = load_relaxed(&shared.receive_stride_bytes);
  if (!std::has_single_bit(count) || !plausible_stride(receives.stride_bytes)) return false;
  receives.mask = count - 1;
  receives.receives = map_array<std::byte>(process, load_relaxed(&shared.receives), count,
                                           receives.stride_bytes, kMaxQueueWrs);
  return receives.receives != nullptr;
}

}  // namespace

Status connect_peer(Qp& qp, uint32_t number) {
  PeerQp peer;
  peer.number = number;
  peer.claim_number = is_xrc(qp.transport) ? qp.number : number;
  VERBENA_ASSIGN_OR_RETURN(peer.process, qp.rnic->attach(slot_of(number)));
  Peer& process = *peer.process;
  peer.memory = &process;
  const Transport wanted = transport_of_peer(qp.transport);
  if (process.is_self()) {
    const Qp* other = qp.rnic->queue_pair(index_of(number));
    if (other == nullptr || other->transport != wanted) {
      return {StatusCode::kUnavailable, fmt::format("soft0: there is no {} queue pair {:#x}",
                                                    transport_name(wanted), number)};
    }
    link_within_process(*other, peer);
    qp.peer = std::move(peer);
    return {};
  }
  peer.regions = process.header().regions;
  const std::atomic<uint64_t>& published = process.header().queue_pairs[index_of(number)];
  const uint64_t address = published.load(std::memory_order_acquire);
  const Status gone{
      StatusCode::kUnavailable,
      fmt::format("soft0: process {} has no queue pair {:#x}", process.pid(), number)};
  if (address == 0) return gone;
  const Status inconsistent{
      StatusCode::kProtocolViolation,
      fmt::format("soft0: process {} reports an inconsistent queue pair {:#x}", process.pid(),
                  number)};
  // Of one that is being destroyed, the memory may be another object's by now. Acquire: what is
  // asked after was read before.
  const auto is_published = [&] {
    std::atomic_thread_fence(std::memory_order_acquire);
    return published.load(std::memory_order_relaxed) == address;
  };
  const auto broken = [&] { return is_published() ? inconsistent : gone; };
  peer.address = address;
  peer.shared = map_array<QpShared>(process, address, 1, sizeof(QpShared), 1);
  if (peer.shared == nullptr) return broken();
  const QpShared& shared = *peer.shared;
  if (load_relaxed(&shared.transport) != static_cast<uint32_t>(wanted)) {
    return {StatusCode::kUnavailable,
            fmt::format("soft0: the queue pair {:#x} of process {} is not a {} one", number,
                        process.pid(), transport_name(wanted))};
  }
  // Acquire: the rest was set up before the gate was first stored.
  peer.generation = static_cast<uint32_t>(shared.gate.load(std::memory_order_acquire) >> 32);
  peer.domain = load_relaxed(&shared.domain);
  peer.receive_domain = peer.domain;
  if (is_xrc(qp.transport)) {
    qp.peer = std::move(peer);
    return {};
  }
  if (!map_completion_queue(process, shared, peer.cq) ||
      !map_packets(process, shared.connection, peer.packets)) {
    return broken();
  }
  const uint64_t srq = load_relaxed(&shared.shared_receive_queue);
  if (srq != 0 ? !map_shared_receive_queue(process, srq, peer.srq, &peer.receive_domain)
               : !map_receives(process, shared.connection, peer.receives)) {
    return broken();
  }
  if (!is_published()) return gone;
  qp.peer = std::move(peer);
  return {};
}

// A peer that changes its generation afterwards has received nothing of what was sent, and an own
// generation after another one's operations would go on in the middle of them; both stay shut.
bool open_gate(Qp& qp) {
  PeerQp& peer = qp.peer;
  if (peer.gate_ready != kNoGate) return false;
  const uint64_t gate = peer.shared->gate.load(std::memory_order_acquire);
  const auto generation = static_cast<uint32_t>(gate >> 32);
  const uint64_t ready = make_gate(generation, qp.number, IBV_QPS_RTR);
  const uint64_t sending = make_gate(generation, qp.number, IBV_QPS_RTS);
  // Another one, made since in the same memory, may mean this queue pair, too.
  if ((gate != ready && gate != sending) || !peer.is_the_one()) return false;
  uint32_t sender_generation = 0;
  if (!peer.shared->connection.sender_generation.compare_exchange_strong(sender_generation,
                                                                         qp.generation) &&
      sender_generation != qp.generation)
    return false;
  peer.gate_ready = ready;
  peer.gate_sending = sending;
  return true;
}

}  // namespace verbena::soft
