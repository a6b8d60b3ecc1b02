// The receives posted to a queue pair of its own, private and as its peer sees them.
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "src/base/assert.h"
#include "src/device/soft/layout.h"

namespace verbena::soft {

// A receive request as its owner keeps it.
struct PostedReceive {
  uint64_t wr_id;
  uint32_t length_bytes;
  uint32_t sge_count;
  ibv_sge* sges;
  std::atomic<bool> posted;  // shared receive queues: not consumed yet
};

// A ring. Posted to under recv_lock, consumed under the lock of the receive completion queue.
class ReceiveRing {
 public:
  // `shown`: SharedReceive[count], with `stride_bytes` from one to the next.
  void configure(uint32_t depth, uint32_t count, uint32_t max_sges, std::byte* shown,
                 size_t stride_bytes) {
    depth_ = depth;
    mask_ = count - 1;
    shown_ = shown;
    stride_bytes_ = static_cast<uint32_t>(stride_bytes);
    kept_ = std::make_unique<PostedReceive[]>(count);
    sges_ = std::make_unique<ibv_sge[]>(size_t{count} * max_sges);
    for (uint32_t i = 0; i < count; ++i) kept_[i].sges = &sges_[size_t{i} * max_sges];
  }
  uint32_t mask() const { return mask_; }
  std::byte* shown() const { return shown_; }
  uint32_t stride_bytes() const { return stride_bytes_; }

  // --- the poster ---
  bool full() const {
    // Acquire: the consumer is done with the receive whose place is free.
    return posted_ - consumed_.load(std::memory_order_acquire) >= depth_;
  }
  PostedReceive& next_kept() { return kept_[posted_ & mask_]; }
  SharedReceive& next_shown() const {
    return *reinterpret_cast<SharedReceive*>(shown_ + (posted_ & mask_) * size_t{stride_bytes_});
  }
  // The next one is filled; `usable_bytes`: what surely fits.
  void push(uint32_t usable_bytes) {
    VERBENA_DEBUG_ASSERT(!full());
    shortest_bytes_ = std::min(shortest_bytes_, usable_bytes);
    ++posted_;
  }
  // Shows what was pushed; the result is what senders read, see ConnectionShared::credits.
  uint64_t publish() {
    VERBENA_DEBUG_ASSERT(posted_ - visible_.load(std::memory_order_relaxed) <= depth_);
    visible_.store(posted_, std::memory_order_release);
    return credits();
  }
  uint64_t credits() const { return uint64_t{shortest_bytes_} << 32 | posted_; }

  // --- the consumer ---
  // The oldest receive; null if there is none.
  PostedReceive* oldest() {
    const uint32_t consumed = consumed_.load(std::memory_order_relaxed);
    if (consumed == visible_.load(std::memory_order_acquire)) return nullptr;
    return &kept_[consumed & mask_];
  }
  void pop() {
    const uint32_t consumed = consumed_.load(std::memory_order_relaxed);
    VERBENA_DEBUG_ASSERT(visible_.load(std::memory_order_relaxed) - consumed - 1 < depth_);
    // Release: the poster may overwrite the receive only after we are done with it.
    consumed_.store(consumed + 1, std::memory_order_release);
  }

  // Holds both locks.
  void reset() {
    posted_ = 0;
    shortest_bytes_ = ~0u;
    visible_.store(0);
    consumed_.store(0);
  }

 private:
  uint32_t posted_ = 0;
  uint32_t depth_ = 0;
  uint32_t mask_ = 0;
  uint32_t shortest_bytes_ = ~0u;
  uint32_t stride_bytes_ = 0;
  std::byte* shown_ = nullptr;
  std::unique_ptr<PostedReceive[]> kept_;
  std::unique_ptr<ibv_sge[]> sges_;
  // On a line of its own: the poster reads it, the poller writes it.
  alignas(kCacheLineBytes) std::atomic<uint32_t> consumed_{0};
  std::atomic<uint32_t> visible_{0};  // posted_, for the consumer
};

}  // namespace verbena::soft
