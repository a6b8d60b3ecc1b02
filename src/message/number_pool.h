// Numbers below a capacity, handed out and taken back; those that were never used come last.
#pragma once

#include <cstdint>

#include "src/message/zeroed_array.h"

namespace verbena::message {

class NumberPool {
 public:
  static constexpr uint32_t kNone = ~0u;

  explicit NumberPool(uint32_t capacity) : next_(capacity), capacity_(capacity) {}

  bool empty() const { return free_ == 0 && used_ever_ == capacity_; }
  uint32_t in_use() const { return in_use_; }
  // All numbers that were ever handed out are below it.
  uint32_t used_ever() const { return used_ever_; }
  // kNone: all are in use.
  uint32_t take() {
    if (empty()) return kNone;
    ++in_use_;
    if (free_ == 0) return used_ever_++;
    const uint32_t number = free_ - 1;
    free_ = next_[number];
    return number;
  }
  void give_back(uint32_t number) {
    VERBENA_DEBUG_ASSERT(number < used_ever_ && in_use_ > 0);
    next_[number] = free_;
    free_ = number + 1;
    --in_use_;
  }

 private:
  ZeroedArray<uint32_t> next_;  // plus 1; 0: none
  uint32_t capacity_;
  uint32_t free_ = 0;  // plus 1
  uint32_t used_ever_ = 0;
  uint32_t in_use_ = 0;
};

}  // namespace verbena::message
