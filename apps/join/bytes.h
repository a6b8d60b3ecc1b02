// Loads and stores of values at any address: buffers of foreign arrays need not be aligned, and
// rows in messages are not.
//
// They are not counted one by one (verbena/data_path.h): these are the inner loops of the join,
// where counting would be half the work. What they move is counted for whole tables and batches.
#pragma once

#include <cstdint>
#include <cstring>

namespace verbena::join_app {

template <typename T>
inline T load(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));  // NOLINT(conventions): see above
  return value;
}
template <typename T>
inline void store(void* to, T value) {
  std::memcpy(to, &value, sizeof(T));  // NOLINT(conventions): see above
}
inline void move_bytes(void* to, const void* from, uint64_t size_bytes) {
  std::memcpy(to, from, size_bytes);  // NOLINT(conventions): see above
}

inline bool bit(const uint8_t* bits, uint64_t number) {
  return (bits[number / 8] >> (number % 8) & 1) != 0;
}
inline void set_bit(uint8_t* bits, uint64_t number) {
  bits[number / 8] = static_cast<uint8_t>(bits[number / 8] | 1u << (number % 8));
}

}  // namespace verbena::join_app
