// R slots of one shape, one behind the other: half of a queue pair's (L + V) * R bytes ("msgproto"
// 4).
#pragma once

#include <cstdint>

#include "src/base/assert.h"
#include "src/channel/completion_mark.h"

namespace verbena::channel {

struct SlotArray {
  char* base = nullptr;
  SlotShape shape{};
  uint32_t count = 0;

  char* slot(uint32_t index) const {
    VERBENA_DEBUG_ASSERT(index < count);
    return base + uint64_t{index} * shape.slot_bytes;
  }
  uint64_t size_bytes() const { return size_bytes(shape, count); }

  static uint64_t size_bytes(const SlotShape& shape, uint32_t count) {
    return uint64_t{count} * shape.slot_bytes;
  }
  static SlotArray carve(RegisteredArena& arena, const SlotShape& shape, uint32_t count) {
    return {arena.carve(size_bytes(shape, count)), shape, count};
  }
};

// The peer's slots of the same shape, bound one to one to the own ones ("mpiiba" 3.2).
struct RemoteSlots {
  uint64_t address = 0;
  uint32_t rkey = 0;
};

}  // namespace verbena::channel
