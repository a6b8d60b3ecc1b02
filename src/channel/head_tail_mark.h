// Flag and size at the head, flag at the tail, with two flag values ("mpiiba" 4.2).
//
//   slot:  | size (4 bytes) | 3 zero | head flag | payload, padded | tail flag |
//                                      ^ byte 8                      ^ last of a word
//
// The receiver polls the head flag, reads the size, and takes the message once the tail flag equals
// the head flag. After use it clears the head only. The tail's place then still holds something: an
// earlier tail flag or an earlier payload byte. The sender knows what, because its slot is bound to
// the receiver's and holds the same bytes: if it is the primary flag value, this message uses the
// secondary one, otherwise the primary. Neither side touches more bytes than the message has.
//
// This only holds while the bytes behind a message are left as they were sent: whoever fills the
// payload writes no further than the size it then sends.
//
// Against the paper: the head flag follows the size instead of preceding it, so that a receiver
// that sees the flag has the whole size even if a device places single bytes; and the tail flag
// ends an 8-byte word (see completion_mark.h).
#pragma once

#include <cstdint>

#include "src/base/assert.h"
#include "src/channel/completion_mark.h"
#include "verbena/data_path.h"

namespace verbena::channel {

struct HeadTailMark {
  static constexpr uint32_t kPayloadOffset = kWordBytes;
  static constexpr bool kClearKeepsPayload = true;

  static constexpr SlotShape shape(uint32_t capacity_bytes) {
    return {capacity_bytes, round_up<uint32_t>(message_bytes(capacity_bytes), kCacheLineBytes)};
  }
  static constexpr uint32_t sealed_bytes(uint32_t bytes) { return message_bytes(bytes); }
  static constexpr uint32_t cleared_bytes(uint32_t /*bytes*/) { return kWordBytes; }

  static Sealed seal(char* slot, const SlotShape& shape, uint32_t bytes) {
    VERBENA_DEBUG_ASSERT(bytes <= shape.capacity_bytes);
    char* tail = slot + message_bytes(bytes) - 1;
    const uint64_t flag = static_cast<uint8_t>(*tail) == kPrimary ? kSecondary : kPrimary;
    *tail = static_cast<char>(flag);
    const uint64_t head = flag << 56 | bytes;
    store_word(slot, head);
    return {0, 0, message_bytes(bytes)};
  }

  static Probe probe(const char* slot, const SlotShape& shape) {
    const uint64_t head = poll_header(slot);
    const uint64_t flag = head >> 56;
    if (flag == 0) return {};
    const uint64_t bytes = head & ~(uint64_t{0xff} << 56);
    if ((flag != kPrimary && flag != kSecondary) || bytes > shape.capacity_bytes) {
      return {.arrival = Arrival::kViolation};
    }
    const auto size = static_cast<uint32_t>(bytes);
    if (poll_mark(slot + message_bytes(size) - 1, static_cast<uint8_t>(flag)) != flag) return {};
    return {Arrival::kMessage, size, slot + kPayloadOffset};
  }

  static void clear(char* slot, const SlotShape& /*shape*/, uint32_t /*bytes*/) {
    store_word(slot, uint64_t{0});
  }

 private:
  static constexpr uint64_t kPrimary = 0x5a;
  static constexpr uint64_t kSecondary = 0xc3;
  // From the slot's start to behind the tail flag.
  static constexpr uint32_t message_bytes(uint32_t bytes) {
    return kPayloadOffset + round_up(bytes + 1, kWordBytes);
  }
};
static_assert(CompletionMark<HeadTailMark>);

}  // namespace verbena::channel
