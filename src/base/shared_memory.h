// Reading and writing memory that another thread, another process or an RNIC writes too.
//
// Polled memory is read with acquire order through these helpers: what the writer stored before its
// mark is visible once the mark is. `volatile` gives no such guarantee.
#pragma once

#include <atomic>
#include <type_traits>

namespace verbena {

template <typename T>
inline T load_acquire(const T* address) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  return __atomic_load_n(address, __ATOMIC_ACQUIRE);
}

template <typename T>
inline T load_relaxed(const T* address) {
  return __atomic_load_n(address, __ATOMIC_RELAXED);
}

template <typename T>
inline void store_release(T* address, T value) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  __atomic_store_n(address, value, __ATOMIC_RELEASE);
}

template <typename T>
inline void store_relaxed(T* address, T value) {
  __atomic_store_n(address, value, __ATOMIC_RELAXED);
}

}  // namespace verbena
