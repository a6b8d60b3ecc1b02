// The requests of a queue pair that have been posted and have not completed yet, as the layer knows
// them.
#pragma once

#include <infiniband/verbs.h>

#include <bit>
#include <cstdint>
#include <memory>
#include <mutex>

#include "src/base/assert.h"
#include "src/device/soft/objects.h"

namespace verbena::soft::observe {

struct Posted {
  uint64_t time_ns;
  uint64_t wr_id;
  uint32_t length_bytes;
  uint32_t first_psn;
  uint32_t last_psn;
  uint8_t opcode;  // ibv_wr_opcode
  bool signaled;
  bool on_wire;  // there are packets of it
  uint8_t sge_count;
};

// Bounded, in the order of posting.
template <typename Entry>
class PostedQueue {
 public:
  void configure(uint32_t capacity) {
    if (entries_ == nullptr || capacity > mask_ + 1) {
      mask_ = std::bit_ceil(std::max(capacity, 1u)) - 1;
      entries_ = std::make_unique<Entry[]>(mask_ + 1);
    }
    head_ = tail_ = 0;
  }
  bool empty() const { return head_ == tail_; }
  bool full() const { return entries_ == nullptr || tail_ - head_ == mask_ + 1; }
  uint32_t size() const { return tail_ - head_; }
  uint32_t capacity() const { return mask_ + 1; }
  // Where the next one comes to lie, for what is kept beside.
  uint32_t next_place() const { return tail_ & mask_; }
  uint32_t place(uint32_t number) const { return (head_ + number) & mask_; }
  void push(const Entry& entry) {
    VERBENA_DEBUG_ASSERT(!full());
    entries_[tail_++ & mask_] = entry;
  }
  Entry& at(uint32_t number) {
    VERBENA_DEBUG_ASSERT(number < size());
    return entries_[(head_ + number) & mask_];
  }
  void pop() {
    VERBENA_DEBUG_ASSERT(!empty());
    ++head_;
  }
  void take_back(uint32_t count) {
    VERBENA_DEBUG_ASSERT(count <= size());
    tail_ -= count;
  }

 private:
  std::unique_ptr<Entry[]> entries_;
  uint32_t mask_ = 0;
  uint32_t head_ = 0;
  uint32_t tail_ = 0;
};

struct PostedReceiveNote {
  uint64_t time_ns;
  uint64_t wr_id;
};

struct TrackedQueuePair {
  std::mutex mutex;  // of all below
  // Of which queue pair, and since which reset: when another one comes, all begins anew.
  uint32_t number = 0;
  uint32_t generation = 0;
  uint32_t receiving_generation = 0;
  Transport transport = Transport::kReliable;
  const RegionEntry* regions = nullptr;
  uint32_t domain = 0;
  uint32_t peer = 0;
  uint32_t mtu_bytes = 0;
  uint32_t next_psn = 0;
  uint32_t message_number = 0;  // that the responder acknowledged
  PostedQueue<Posted> sends;
  PostedQueue<PostedReceiveNote> receives;
  // Scatter lists of READs and atomics, by the place of their request.
  std::unique_ptr<ibv_sge[]> sges;
};

}  // namespace verbena::soft::observe
