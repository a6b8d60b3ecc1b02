// Completed sends, as they wait in a completion queue to be polled.
#pragma once

#include <infiniband/verbs.h>

#include <bit>
#include <cstdint>
#include <memory>
#include <utility>

#include "src/base/assert.h"

namespace verbena::soft {

struct Qp;

struct Completion {
  uint64_t wr_id;
  Qp* qp;
  ibv_wc_status status;
  ibv_wc_opcode opcode;
  uint32_t byte_count;
  uint32_t send_position;  // send WQEs up to here are free once this is polled
};

// A ring in memory of this process alone. Under the completion queue's lock.
class CompletionRing {
 public:
  void configure(uint32_t capacity) {
    const uint32_t entries = std::bit_ceil(capacity);
    ring_ = std::make_unique<Completion[]>(entries);
    capacity_ = capacity;
    mask_ = entries - 1;
  }
  // For `capacity` from now on. False, and nothing changes, if more are kept.
  bool resize(uint32_t capacity) {
    if (tail_ - head_ > capacity) return false;
    CompletionRing resized;
    resized.configure(capacity);
    for (; !empty(); pop()) resized.push(front());
    *this = std::move(resized);
    return true;
  }
  bool empty() const { return head_ == tail_; }
  bool full() const { return tail_ - head_ == capacity_; }
  void push(const Completion& completion) {
    VERBENA_DEBUG_ASSERT(tail_ - head_ < capacity_);
    ring_[tail_ & mask_] = completion;
    ++tail_;
  }
  const Completion& front() const {
    VERBENA_DEBUG_ASSERT(!empty() && tail_ - head_ <= capacity_);
    return ring_[head_ & mask_];
  }
  void pop() {
    VERBENA_DEBUG_ASSERT(!empty());
    ++head_;
  }
  // Drops the completions of a queue pair.
  void forget(const Qp& qp) {
    uint32_t kept = head_;
    for (uint32_t at = head_; at != tail_; ++at) {
      if (ring_[at & mask_].qp != &qp) ring_[kept++ & mask_] = ring_[at & mask_];
    }
    VERBENA_ASSERT(tail_ - kept <= capacity_);
    tail_ = kept;
  }

 private:
  std::unique_ptr<Completion[]> ring_;
  uint32_t capacity_ = 0;
  uint32_t mask_ = 0;
  uint32_t head_ = 0;
  uint32_t tail_ = 0;
};

}  // namespace verbena::soft
