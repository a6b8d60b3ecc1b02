// From the number of a queue pair to the ring in which its datagrams arrive. The process is
// attached on first use and kept as long as it lives; after that a look-up takes no system call.
#include <bit>

#include "src/base/runtime.h"
#include "src/base/shared_memory.h"
#include "src/device/soft/datagram_ring.h"
#include "src/device/soft/ud.h"

namespace verbena::soft {
namespace {

// How long nobody is asked again for a process that there was not: to ask takes system calls.
constexpr uint64_t kAskAgainNs = 1'000'000;

// Of a queue pair of another process: what it says is checked.
bool map_ring(Peer& process, const QpShared& shared, Destination& found) {
  const DatagramShared& shown = shared.datagram;
  const uint32_t count = load_relaxed(&shown.slot_count);
  if (!std::has_single_bit(count)) return false;
  found.mask = count - 1;
  found.claims = map_array<std::atomic<uint64_t>>(process, load_relaxed(&shown.claims), count,
                                                  sizeof(uint64_t), kMaxQueueWrs);
  found.datagrams = map_array<Datagram>(process, load_relaxed(&shown.datagrams), count,
                                        sizeof(Datagram), kMaxQueueWrs);
  found.payloads = map_array<std::byte>(process, load_relaxed(&shown.payloads), count,
                                        kDatagramPayloadBytes, kMaxQueueWrs);
  if (const uint64_t flows = load_relaxed(&shown.flows); flows != 0)
    found.flows = map_array<FlowShared>(process, flows, kMaxFlows, sizeof(FlowShared), kMaxFlows);
  if (found.claims == nullptr || found.datagrams == nullptr || found.payloads == nullptr)
    return false;
  return map_completion_queue(process, shared, found.cq);
}

// Acquire: what belongs to this generation is read after it.
uint32_t generation_of(const QpShared& shared) {
  return static_cast<uint32_t>(shared.gate.load(std::memory_order_acquire) >> 32);
}

bool map_queue_pair(Peer& process, uint32_t index, Transport wanted, Destination& found,
                    uint32_t* generation) {
  const std::atomic<uint64_t>& entry = process.header().queue_pairs[index];
  const uint64_t address = entry.load(std::memory_order_acquire);
  if (address == 0) return false;
  found.shared = map_array<QpShared>(process, address, 1, sizeof(QpShared), 1);
  if (found.shared == nullptr) return false;
  *generation = generation_of(*found.shared);
  if (load_relaxed(&found.shared->transport) != static_cast<uint32_t>(wanted) ||
      !map_ring(process, *found.shared, found)) {
    return false;
  }
  const uint64_t srq = load_relaxed(&found.shared->shared_receive_queue);
  if (srq != 0) {
    found.srq = map_array<SrqShared>(process, srq, 1, sizeof(SrqShared), 1);
    if (found.srq == nullptr) return false;
  }
  std::atomic_thread_fence(std::memory_order_acquire);
  // The ring may be another queue pair's by now.
  return generation_of(*found.shared) == *generation &&
         entry.load(std::memory_order_acquire) == address;
}

// Of this process: from its private half.
bool link_own(Rnic& rnic, uint32_t index, Transport wanted, Destination& found,
              uint32_t* generation) {
  DatagramRings::Own own;
  if (!rnic.datagram_rings().find(index, &own)) return false;
  if ((own.flows != nullptr) != (wanted == Transport::kRawPacket)) return false;
  found.shared = own.ring->shared();
  *generation = generation_of(*found.shared);
  // The ring may be another queue pair's by now.
  DatagramRings::Own again;
  if (!rnic.datagram_rings().find(index, &again) || again != own) return false;
  found.claims = own.ring->claims();
  found.datagrams = own.ring->datagrams();
  found.payloads = own.ring->payloads();
  found.mask = own.ring->slots() - 1;
  found.cq = own.cq;
  if (own.flows != nullptr) {
    // By its second mapping, as below.
    found.flows = map_array<FlowShared>(rnic.self(), reinterpret_cast<uint64_t>(own.flows),
                                        kMaxFlows, sizeof(FlowShared), kMaxFlows);
    if (found.flows == nullptr) return false;
  }
  if (own.srq == nullptr) return true;
  // By its second mapping, which stays where it is when the queue is destroyed.
  found.srq = map_array<SrqShared>(rnic.self(), reinterpret_cast<uint64_t>(own.srq), 1,
                                   sizeof(SrqShared), 1);
  return found.srq != nullptr;
}

}  // namespace

void Destinations::forget(const Peer& process) {
  for (Destination& place : places_) {
    if (place.process.get() == &process) place = {};
  }
}

bool Destinations::look_up(Rnic& rnic, uint32_t number, Destination& place) const {
  if (place.number == number && place.process == nullptr && place.ask_again_ns != 0 &&
      now_ns() < place.ask_again_ns) {
    return false;
  }
  Destination found;
  found.number = number;
  Result<std::shared_ptr<Peer>> process = rnic.attach_for_datagrams(slot_of(number));
  if (!process.ok()) {
    found.ask_again_ns = now_ns() + kAskAgainNs;
    place = std::move(found);
    return false;
  }
  found.process = *process;
  const uint32_t index = index_of(number);
  uint32_t generation = 0;
  const bool mapped = found.process->is_self()
                          ? link_own(rnic, index, transport_, found, &generation)
                          : map_queue_pair(*found.process, index, transport_, found, &generation);
  if (!mapped) {
    found.shared = nullptr;
    place = std::move(found);
    return false;
  }
  found.gate_ready = make_gate(generation, 0, IBV_QPS_RTR);
  found.gate_sending = make_gate(generation, 0, IBV_QPS_RTS);
  found.next = found.shared->datagram.next_hint.load(std::memory_order_relaxed);
  found.known_limit = found.next;
  place = std::move(found);
  return place.receives();
}

}  // namespace verbena::soft
