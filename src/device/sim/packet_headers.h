// How long the headers of a packet are (IBTA volume 1, chapter 9).
#pragma once

#include <cstdint>

namespace verbena::sim {

inline constexpr uint64_t kBaseHeaderBytes = 12;
inline constexpr uint64_t kRdmaHeaderBytes = 16;
inline constexpr uint64_t kAckHeaderBytes = 4;
inline constexpr uint64_t kAtomicHeaderBytes = 28;
inline constexpr uint64_t kAtomicAckBytes = 8;
inline constexpr uint64_t kImmediateBytes = 4;
inline constexpr uint64_t kDatagramHeaderBytes = 8;
inline constexpr uint64_t kInvariantCrcBytes = 4;

// The payload with what fills its last word.
inline constexpr uint64_t padded_bytes(uint64_t payload_bytes) {
  constexpr uint64_t kWordBytes = 4;
  return (payload_bytes + kWordBytes - 1) / kWordBytes * kWordBytes;
}

}  // namespace verbena::sim
