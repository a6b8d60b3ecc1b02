// Which bytes of a ring's slots may differ from zero: so that a ring which changes hands costs what
// it was used for, and not its size.
#pragma once

#include <algorithm>
#include <cstdint>

#include "src/channel/slot_array.h"
#include "src/message/ring_mark.h"
#include "verbena/data_path.h"

namespace verbena::message {

// A ring is used from its first slot on, so the number of messages says in which slots there is
// something, and the longest message how far it goes: from the slot's start to the tail flag.
class WrittenSlots {
 public:
  // A message of `bytes`.
  void add(uint32_t bytes) {
    if (bytes >= end_bytes_) end_bytes_ = bytes + 1;
  }
  // Anything may be there.
  void add_all(const channel::SlotArray& slots) {
    end_bytes_ = slots.shape.capacity_bytes + 1;
    all_ = true;
  }
  // Everything is zero then. `messages` have been added since the last time.
  void clear(const channel::SlotArray& slots, uint64_t messages) {
    if (all_) {
      clear_bytes(slots.base, slots.size_bytes());
    } else if (end_bytes_ > 0) {
      const uint32_t bytes = RingMark::sealed_bytes(end_bytes_ - 1);
      const auto count = static_cast<uint32_t>(std::min<uint64_t>(messages, slots.count));
      for (uint32_t slot = 0; slot < count; ++slot) clear_bytes(slots.slot(slot), bytes);
    }
    end_bytes_ = 0;
    all_ = false;
  }

 private:
  uint32_t end_bytes_ = 0;  // longer than any message
  bool all_ = false;
};

}  // namespace verbena::message
