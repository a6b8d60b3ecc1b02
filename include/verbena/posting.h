// What posts of every kind have in common: their outcome, and the inline limit that asks for the
// device's.
#pragma once

#include <cstdint>

namespace verbena {

// Where options ask for an inline limit: what the device has.
inline constexpr uint32_t kDeviceInlineLimit = ~0u;

enum class PostResult : uint8_t {
  kPosted,
  kWouldBlock,  // no room: a slot still waits, or a queue is full. Poll, then try again
  kFailed,      // the connection says why
};

}  // namespace verbena
