// The send queue of a simulated queue pair.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>
#include <vector>

#include "src/base/assert.h"
#include "src/device/sim/growing_ring.h"
#include "src/device/sim/opcode.h"

namespace verbena::sim {

// A send WQE. Messages of a queue pair are numbered like their WQEs.
struct Wqe {
  uint64_t wr_id = 0;
  uint64_t remote_address = 0;
  uint64_t compare = 0;
  uint64_t swap = 0;
  uint32_t rkey = 0;
  uint32_t length_bytes = 0;
  uint32_t packets = 1;  // of the request or, for READ, of the response
  uint32_t arrived = 0;  // packets of the response
  uint32_t imm_data = 0;
  ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE;
  uint8_t sges = 0;
  bool inlined = false;
  bool signaled = false;
  bool fence = false;
  bool done = false;   // READ, atomic: the response is there
  bool late = false;   // it came with its doorbell while others waited, and is fetched after all
  bool asked = false;  // and it counts as outstanding
  bool bad = false;    // its memory may not be used: it fails when its turn comes
};

// What a send WQE has in its queue: segments for control, the peer's memory, and each piece of the
// gather list or the inline payload (rdma-core's mlx4 and mlx5). Queues are made of blocks of 64 B,
// and so are the fetches of WQEs.
inline constexpr uint64_t kWqeBlockBytes = 64;
inline constexpr uint64_t kWqeSegmentBytes = 16;

// `address_bytes`: of a datagram's receiver.
inline uint64_t wqe_bytes(const Wqe& wqe, uint64_t address_bytes) {
  constexpr uint64_t kControlBytes = 16;
  constexpr uint64_t kAddressBytes = 16;
  constexpr uint64_t kInlineHeaderBytes = 4;
  uint64_t bytes = kControlBytes + address_bytes;
  if (is_rdma(wqe.opcode)) bytes += kAddressBytes;
  if (is_atomic(wqe.opcode)) bytes += 2 * kAddressBytes;
  return bytes +
         (wqe.inlined ? kInlineHeaderBytes + wqe.length_bytes : wqe.sges * kWqeSegmentBytes);
}
inline uint64_t wqe_blocks(const Wqe& wqe, uint64_t address_bytes) {
  return (wqe_bytes(wqe, address_bytes) + kWqeBlockBytes - 1) / kWqeBlockBytes;
}

// Memory for the WQEs of all queue pairs of an RNIC, each with its gather list, the address of a
// datagram and inline bytes.
// What was given back last is used first: of millions of queue pairs few have WQEs at a time, and
// their memory stays in the caches of who simulates them.
class WqePool {
 public:
  WqePool() = default;
  WqePool(const WqePool&) = delete;
  WqePool& operator=(const WqePool&) = delete;

  Wqe* take(const Wqe& wqe, uint32_t address_bytes) {
    const size_t units = units_of(wqe, address_bytes);
    if (units >= free_.size()) free_.resize(units + 1);
    Free*& first = free_[units];
    if (first == nullptr) add_chunk(units);
    void* const place = first;
    first = first->next;
    return new (place) Wqe(wqe);
  }
  void give_back(Wqe* wqe, uint32_t address_bytes) {
    const size_t units = units_of(*wqe, address_bytes);
    static_assert(std::is_trivially_destructible_v<Wqe>);
    free_[units] = new (wqe) Free{free_[units]};
  }

 private:
  struct Free {
    Free* next;
  };
  struct alignas(64) Unit {
    std::byte bytes[64];
  };
  static constexpr size_t kChunkUnits = 64;

  static size_t units_of(const Wqe& wqe, uint32_t address_bytes) {
    const size_t bytes = sizeof(Wqe) + wqe.sges * sizeof(ibv_sge) + address_bytes +
                         (wqe.inlined ? wqe.length_bytes : 0);
    return (bytes + sizeof(Unit) - 1) / sizeof(Unit);
  }
  void add_chunk(size_t units) {
    const size_t count = units < kChunkUnits ? kChunkUnits / units : 1;
    chunks_.push_back(std::make_unique_for_overwrite<Unit[]>(count * units));
    for (size_t i = count; i > 0; --i) {
      free_[units] = new (&chunks_.back()[(i - 1) * units]) Free{free_[units]};
    }
  }

  std::vector<Free*> free_;  // by units
  std::vector<std::unique_ptr<Unit[]>> chunks_;
};

// The send WQEs of a queue pair, by their numbers, from when they are posted until the RNIC has
// done with them.
class SendWqes {
 public:
  // `address_bytes`: that each has for where it goes; of datagrams.
  void configure(WqePool& pool, uint32_t address_bytes) {
    pool_ = &pool;
    address_bytes_ = address_bytes;
  }
  // Adds the next one. Its gather list, address and inline bytes are to be filled.
  void add(const Wqe& wqe) { wqes_.push_back(pool_->take(wqe, address_bytes_)); }
  // Nobody will ask for those below `number` again.
  void release_below(uint64_t number) {
    VERBENA_DEBUG_ASSERT(number <= oldest_ + wqes_.size());
    for (; oldest_ < number; ++oldest_) {
      pool_->give_back(wqes_.front(), address_bytes_);
      wqes_.pop_front();
    }
  }
  void clear() {
    release_below(oldest_ + wqes_.size());
    oldest_ = 0;
  }

  Wqe& wqe(uint64_t number) {
    VERBENA_DEBUG_ASSERT(number >= oldest_ && number - oldest_ < wqes_.size());
    return *wqes_[static_cast<uint32_t>(number - oldest_)];
  }
  ibv_sge* sges(uint64_t number) { return reinterpret_cast<ibv_sge*>(&wqe(number) + 1); }
  std::byte* address(uint64_t number) {
    return reinterpret_cast<std::byte*>(sges(number) + wqe(number).sges);
  }
  std::byte* inline_bytes(uint64_t number) { return address(number) + address_bytes_; }

 private:
  WqePool* pool_ = nullptr;
  // The ring ends with room for what follows.
  [[no_unique_address]] GrowingRing<Wqe*> wqes_;
  uint32_t address_bytes_ = 0;
  uint64_t oldest_ = 0;
};
static_assert(sizeof(SendWqes) == 40);

}  // namespace verbena::sim
