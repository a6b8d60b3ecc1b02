// What a queue pair knows of the ones that it sends to, mapped and checked.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "src/base/shared_memory.h"
#include "src/device/soft/copy_choice.h"
#include "src/device/soft/layout.h"
#include "src/device/soft/peer.h"
#include "src/device/soft/write_stride.h"

namespace verbena::soft {

struct Qp;

// What an initiator remembers of a remote region that it used, so that the next use is one load and
// a compare. Valid as long as the entry's stamp is the same.
struct RegionView {
  uint64_t stamp = 0;
  uint64_t iova = 0;
  uint64_t length_bytes = 0;
  std::byte* base = nullptr;  // where iova lies here; null: through the kernel
  // More is copied in parts; 0 where the kernel copies, which never does it at once.
  uint32_t at_once_bytes = 0;
  uint64_t address = 0;  // in the owner's process
  uint32_t access = 0;
  uint32_t domain = 0;
  bool locked_atomics = false;         // Peer::update_foreign()
  std::shared_ptr<std::byte> segment;  // that `base` points into, if it is one
};

// Where a peer hears of arrivals.
struct PeerCq {
  CqShared* shared = nullptr;
  uint32_t ready_bit = kNoReadyBit;
  bool has_channel = false;
  bool operator==(const PeerCq&) const = default;
};

// A shared receive queue from which a peer takes its receives. Any number of senders take from it.
struct PeerSrq {
  SrqShared* shared = nullptr;  // null: the peer has none
  std::atomic<uint64_t>* ring = nullptr;
  std::byte* receives = nullptr;
  uint32_t ring_mask = 0;
  uint32_t receive_count = 0;
  uint32_t stride_bytes = 0;
  uint64_t known_tail = 0;  // refreshed when used up
  // Of XRC: where arrivals are told of, and the stamp that the queue has while it is the same.
  XrcShared* xrc = nullptr;
  std::atomic<uint64_t>* arrivals = nullptr;
  Packet* packets = nullptr;
  uint64_t stamp = 0;
  SharedReceive& receive(uint32_t index) const {
    return *reinterpret_cast<SharedReceive*>(receives + index * size_t{stride_bytes});
  }
  // Acquire: what is read of the queue afterwards is of this one, or of none.
  bool is_there() const {
    return xrc == nullptr || xrc->stamp.load(std::memory_order_acquire) == stamp;
  }
};

// An XRC shared receive queue that requests name by its number.
struct XrcTarget {
  std::shared_ptr<Peer> process;
  const RegionEntry* regions = nullptr;
  uint32_t domain = 0;
  PeerSrq srq;
  PeerCq cq;
};

// The receives that are posted to the peer's queue pair itself, of which this one is the only
// sender.
struct PeerReceives {
  std::byte* receives = nullptr;
  uint32_t mask = 0;
  uint32_t stride_bytes = 0;
  // Refreshed from the peer's credits when used up.
  uint32_t next = 0;
  uint32_t known = 0;
  uint32_t shortest_bytes = 0;
  const SharedReceive& receive(uint32_t number) const {
    return *reinterpret_cast<SharedReceive*>(receives + (number & mask) * size_t{stride_bytes});
  }
};

// The ring of packets at the peer, which this queue pair alone writes.
struct PeerPackets {
  Packet* packets = nullptr;
  uint32_t mask = 0;
  uint32_t next = 0;
  uint32_t known_consumed = 0;
};

// The peer of a connected queue pair, from RTR on.
struct PeerQp {
  std::shared_ptr<Peer> process;
  // Whose regions and receives requests reach: the same, or the owner's of the XRC target.
  Peer* memory = nullptr;
  uint32_t number = 0;   // the peer's queue pair number
  uint64_t address = 0;  // of `shared` in its process, as published there
  // Marks the shared receives that this queue pair takes: the number of the queue pair that
  // receives, whose owner takes back its own ones; of XRC, where none does, the sender's.
  uint32_t claim_number = 0;
  const RegionEntry* regions = nullptr;
  QpShared* shared = nullptr;
  uint32_t generation = 0;  // of the peer's queue pair when it was connected to
  uint32_t domain = 0;
  uint32_t receive_domain =
      0;  // of the receives' memory: a shared receive queue may have another one
  // The gate's value while the peer is RTR, or RTS; known from the first operation on.
  uint64_t gate_ready = kNoGate;
  uint64_t gate_sending = kNoGate;
  PeerPackets packets;
  PeerReceives receives;
  PeerCq cq;
  PeerSrq srq;
  // Of XRC, by number; `srq`, `cq`, `memory`, `regions` and the domains are those of the last used.
  std::unordered_map<uint32_t, XrcTarget> targets;
  WriteStride write_stride;
  CopyChoice copy_choice;
  static constexpr uint32_t kViews = 32;
  std::array<RegionView, kViews> views;

  // Whether `shared` is still that of the queue pair with this number. After an acquire of its
  // gate.
  bool is_the_one() const { return load_relaxed(&shared->number) == number; }
  // Whether the peer still accepts this queue pair, as it did when its gate was opened.
  bool accepts() const {
    // Acquire: what the peer set up before it opened the gate is visible.
    const uint64_t gate = shared->gate.load(std::memory_order_acquire);
    return gate == gate_sending || gate == gate_ready;
  }
};

// Maps an array of a peer. Counts come from the peer, so they are bounded here. Null if it cannot
// be what the peer says.
template <typename T>
T* map_array(Peer& process, uint64_t address, uint64_t count, uint64_t stride_bytes,
             uint64_t max_count) {
  if (address == 0 || address % kCacheLineBytes != 0 || count == 0 || count > max_count)
    return nullptr;
  return reinterpret_cast<T*>(process.map(address, count * stride_bytes));
}

// Maps the completion queue of a peer's queue pair. False if it cannot be what the peer says.
bool map_completion_queue(Peer& process, const QpShared& shared, PeerCq& cq);

// Maps a shared receive queue of a peer. False if it cannot be what the peer says.
bool map_shared_receive_queue(Peer& process, uint64_t address, PeerSrq& srq, uint32_t* domain);

// Maps and checks the queue pair that `qp` is being connected to. Holds Rnic::lock_links().
Status connect_peer(Qp& qp, uint32_t number);

// On the first operation: whether the peer accepts this queue pair, after which PeerQp::accepts()
// knows the gate's open values.
bool open_gate(Qp& qp);

}  // namespace verbena::soft
