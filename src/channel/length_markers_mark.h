// Length and two markers ("msgproto" 3).
//
//   slot:  | 3 unused | length B (4 bytes) | marker | payload, B bytes, padded | marker |
//                                            ^ byte 8                           ^ last of a word
//
// The receiver reads the length once the first marker is there, and takes the message once the last
// byte is the marker too. After use it zeroes all of it (B+6 bytes and the padding), so the place
// of every later marker holds zero until that marker arrives. The zeroing costs a pass over the
// message, but the only word polled is at the slot's start whatever the size.
//
// Against the paper: the header ends, and the last marker is, at the end of an 8-byte word (see
// completion_mark.h), which also aligns the payload; three bytes before the header stay unused.
#pragma once

#include <cstdint>

#include "src/base/assert.h"
#include "src/channel/completion_mark.h"
#include "verbena/data_path.h"

namespace verbena::channel {

struct LengthMarkersMark {
  static constexpr uint32_t kPayloadOffset = kWordBytes;
  static constexpr bool kClearKeepsPayload = false;

  static constexpr SlotShape shape(uint32_t capacity_bytes) {
    return {capacity_bytes, round_up<uint32_t>(message_bytes(capacity_bytes), kCacheLineBytes)};
  }
  static constexpr uint32_t sealed_bytes(uint32_t bytes) {
    return message_bytes(bytes) - kUnusedBytes;
  }
  static constexpr uint32_t cleared_bytes(uint32_t bytes) { return message_bytes(bytes); }

  static Sealed seal(char* slot, const SlotShape& shape, uint32_t bytes) {
    VERBENA_DEBUG_ASSERT(bytes <= shape.capacity_bytes);
    const uint64_t head = kMarker << 56 | static_cast<uint64_t>(bytes) << 24;
    store_word(slot, head);
    slot[message_bytes(bytes) - 1] = static_cast<char>(kMarker);
    return {kUnusedBytes, kUnusedBytes, sealed_bytes(bytes)};
  }

  static Probe probe(const char* slot, const SlotShape& shape) {
    const uint64_t head = poll_header(slot);
    const uint64_t marker = head >> 56;
    if (marker == 0) return {};
    const auto bytes = static_cast<uint32_t>(head >> 24);
    if (marker != kMarker || bytes > shape.capacity_bytes) {
      return {.arrival = Arrival::kViolation};
    }
    const uint8_t last = poll_mark(slot + message_bytes(bytes) - 1, kMarker);
    if (last == kMarker) return {Arrival::kMessage, bytes, slot + kPayloadOffset};
    return {.arrival = last == 0 ? Arrival::kNone : Arrival::kViolation};
  }

  static void clear(char* slot, const SlotShape& shape, uint32_t bytes) {
    VERBENA_DEBUG_ASSERT(bytes <= shape.capacity_bytes);
    clear_bytes(slot, message_bytes(bytes));
  }

 private:
  static constexpr uint64_t kMarker = 0xa5;
  static constexpr uint32_t kUnusedBytes = 3;
  // From the slot's start to behind the last marker.
  static constexpr uint32_t message_bytes(uint32_t bytes) {
    return kPayloadOffset + round_up(bytes + 1, kWordBytes);
  }
};
static_assert(CompletionMark<LengthMarkersMark>);

}  // namespace verbena::channel
