// The payload of a message's packets, on the sending side of requests and of responses.
#pragma once

#include <algorithm>
#include <cstdint>

#include "src/device/sim/rnic_profile.h"

namespace verbena::sim {

// So many packets of a message at least are fetched ahead of the one that is sent.
inline constexpr uint32_t kFetchAheadLeast = 2;

// Of an event that a later generation of the queue pair, or a later `epoch` in it, makes
// meaningless.
inline uint64_t fetch_stamp(uint32_t generation, uint32_t epoch) {
  return uint64_t{generation} << 32 | epoch;
}

// The payload of packet `index` of a message.
inline uint32_t payload_of(uint32_t length_bytes, uint32_t mtu_bytes, uint32_t index) {
  const uint64_t offset = uint64_t{index} * mtu_bytes;
  return static_cast<uint32_t>(std::min<uint64_t>(mtu_bytes, length_bytes - offset));
}

inline Time payload_cost(const Profile& profile, uint32_t bytes) {
  return (bytes + 63) / 64 * profile.tx_64;
}

}  // namespace verbena::sim
