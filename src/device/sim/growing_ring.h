// A FIFO that takes memory only for what was ever in it at once: a cluster has millions of queues,
// nearly all of them empty.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "src/base/assert.h"

namespace verbena::sim {

template <typename T>
class GrowingRing {
 public:
  GrowingRing() = default;
  GrowingRing(GrowingRing&& other) noexcept { swap(other); }
  GrowingRing& operator=(GrowingRing&& other) noexcept {
    swap(other);
    return *this;
  }
  ~GrowingRing() { release(); }

  bool empty() const { return count_ == 0; }
  uint32_t size() const { return count_; }
  // In their order, from 0 on.
  T& operator[](uint32_t index) { return places()[(first_ + index) & (capacity_ - 1)]; }
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
  static_assert(std::is_trivially_copyable_v<T>);
  // One that is no larger than a pointer lies where else the pointer to many is.
  // NOLINTNEXTLINE(bugprone-sizeof-expression): the element may be a pointer
  static constexpr bool kOneInside = sizeof(T) <= sizeof(void*);
  union Places {
    T* many;
    std::conditional_t<kOneInside, T, char> one;
  };

  bool inside() const { return kOneInside && capacity_ == 1; }
  T* places() {
    if constexpr (kOneInside) {
      if (capacity_ == 1) return &places_.one;
    }
    return places_.many;
  }
  void release() {
    if (!inside()) delete[] places_.many;
  }

  void grow() {
    const uint32_t capacity = capacity_ == 0 ? 1 : 2 * capacity_;
    T* const many = new T[capacity];
    for (uint32_t i = 0; i < count_; ++i) many[i] = (*this)[i];
    release();
    places_.many = many;
    capacity_ = capacity;
    first_ = 0;
  }
  void swap(GrowingRing& other) {
    std::swap(places_, other.places_);
    std::swap(capacity_, other.capacity_);
    std::swap(first_, other.first_);
    std::swap(count_, other.count_);
  }

  Places places_{.many = nullptr};
  uint32_t capacity_ = kOneInside ? 1 : 0;  // a power of two, once there is something
  uint32_t first_ = 0;
  uint32_t count_ = 0;
};

}  // namespace verbena::sim
