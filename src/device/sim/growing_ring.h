// A FIFO that takes memory only for what was ever in it at once: a cluster has millions of queues,
// nearly all of them empty.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "src/base/assert.h"

namespace verbena::sim {

template <typename T>
class GrowingRing {
 public:
  bool empty() const { return count_ == 0; }
  uint32_t size() const { return count_; }
  // In their order, from 0 on.
  T& operator[](uint32_t index) { return places_[(first_ + index) & (capacity_ - 1)]; }
  T& front() { return (*this)[0]; }

  void push_back(const T& value) {
    if (count_ == capacity_) grow();
    ++count_;
    (*this)[count_ - 1] = value;
  }
  void pop_front() {
    VERBENA_DEBUG_ASSERT(count_ > 0);
    first_ = (first_ + 1) & (capacity_ - 1);
    --count_;
  }
  // Drops all but the first `count`.
  void truncate(uint32_t count) {
    VERBENA_DEBUG_ASSERT(count <= count_);
    count_ = count;
  }

 private:
  static constexpr uint32_t kFirstCapacity = 1;

  void grow() {
    const uint32_t capacity = capacity_ == 0 ? kFirstCapacity : 2 * capacity_;
    auto places = std::make_unique<T[]>(capacity);
    for (uint32_t i = 0; i < count_; ++i) places[i] = std::move((*this)[i]);
    places_ = std::move(places);
    capacity_ = capacity;
    first_ = 0;
  }

  std::unique_ptr<T[]> places_;
  uint32_t capacity_ = 0;  // a power of two, once there is something
  uint32_t first_ = 0;
  uint32_t count_ = 0;
};

}  // namespace verbena::sim
