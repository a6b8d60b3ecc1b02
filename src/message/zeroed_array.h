// An array of zeros whose pages exist once they are used: for large tables of which little is used.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <type_traits>

#include "src/base/assert.h"

namespace verbena::message {

template <typename T>
class ZeroedArray {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

 public:
  ZeroedArray() = default;
  explicit ZeroedArray(uint64_t count)
      : values_(static_cast<T*>(std::calloc(count, sizeof(T)))), count_(count) {
    VERBENA_ASSERT(values_ != nullptr);
  }

  T& operator[](uint64_t index) {
    VERBENA_DEBUG_ASSERT(index < count_);
    return values_.get()[index];
  }
  const T& operator[](uint64_t index) const {
    VERBENA_DEBUG_ASSERT(index < count_);
    return values_.get()[index];
  }
  uint64_t size() const { return count_; }

 private:
  struct Free {
    void operator()(T* values) const { std::free(values); }
  };
  std::unique_ptr<T, Free> values_;
  uint64_t count_ = 0;
};

}  // namespace verbena::message
