// Mark in the last bit of the slot ("patterns" 4.1).
//
//   receiver's slot:  |  unused  | payload, padded to 8 | length (63 bits) | flag (1 bit) |
//                                                         ^ last 8 bytes of the slot
//
// The paper's messages have one size known to both sides. Here sizes are free, so the mark's word
// carries the length too, and messages are aligned to the slot's end: the flag is always in the
// same place, whatever the size. The receiver polls one word for everything and clears one word;
// nothing that earlier messages left behind is ever read.
//
// In the sender's slot the payload begins at the start, so that it can be written before its size
// is known; the mark's word follows it.
#pragma once

#include <cstdint>

#include "src/base/assert.h"
#include "src/channel/completion_mark.h"
#include "verbena/data_path.h"

namespace verbena::channel {

struct LastBitMark {
  static constexpr uint32_t kPayloadOffset = 0;
  static constexpr bool kClearKeepsPayload = true;

  static constexpr SlotShape shape(uint32_t capacity_bytes) {
    return {capacity_bytes, round_up<uint32_t>(sealed_bytes(capacity_bytes), kCacheLineBytes)};
  }
  static constexpr uint32_t sealed_bytes(uint32_t bytes) { return padded(bytes) + kWordBytes; }
  static constexpr uint32_t cleared_bytes(uint32_t /*bytes*/) { return kWordBytes; }

  static Sealed seal(char* slot, const SlotShape& shape, uint32_t bytes) {
    VERBENA_DEBUG_ASSERT(bytes <= shape.capacity_bytes);
    store_word(slot + padded(bytes), kFlag | bytes);
    const uint32_t sealed = sealed_bytes(bytes);
    return {0, shape.slot_bytes - sealed, sealed};
  }

  // Always inlined: a call would cost a responder 20 instructions a message (scripts/hook-cost).
  __attribute__((always_inline)) static Probe probe(const char* slot, const SlotShape& shape) {
    const char* end = slot + shape.slot_bytes - kWordBytes;
    uint64_t mark;
    if (!poll_marked_word(end, &mark)) return {};
    const uint64_t bytes = mark & ~kFlag;
    if (bytes > shape.capacity_bytes) return {.arrival = Arrival::kViolation};
    const auto size = static_cast<uint32_t>(bytes);
    return {Arrival::kMessage, size, end - padded(size)};
  }

  static void clear(char* slot, const SlotShape& shape, uint32_t /*bytes*/) {
    store_word(slot + shape.slot_bytes - kWordBytes, uint64_t{0});
  }

 private:
  static constexpr uint64_t kFlag = uint64_t{1} << 63;
  static constexpr uint32_t padded(uint32_t bytes) { return round_up(bytes, kWordBytes); }
};
static_assert(CompletionMark<LastBitMark>);

}  // namespace verbena::channel
