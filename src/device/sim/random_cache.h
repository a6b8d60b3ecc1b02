// An on-chip cache with random replacement: what is used often enough between misses stays.
//
// A burst of packets of one queue pair costs one miss; queue pairs that take turns packet by packet
// cost one each. How much a message costs thus depends on how messages come, not on a rate given.
#pragma once

#include <cstdint>
#include <vector>

#include "src/base/runtime.h"

namespace verbena::sim {

// Where a piece of state may be; part of what has the state.
struct CachePlace {
  uint32_t id = 0;  // 0: was never there
  uint32_t slot = 0;
};

class RandomCache {
 public:
  void configure(uint64_t capacity) { capacity_ = capacity; }

  // One access; false: a miss, after which the state is there.
  bool touch(CachePlace& place, Random& dice) {
    if (place.id != 0 && slots_[place.slot] == place.id) return true;
    if (slots_.size() < capacity_) {
      place.slot = static_cast<uint32_t>(slots_.size());
      slots_.push_back(0);
    } else if (capacity_ > 0) {
      place.slot = static_cast<uint32_t>(dice.below(capacity_));
    } else {
      return false;
    }
    if (++ids_ == 0) ++ids_;
    place.id = slots_[place.slot] = ids_;
    return false;
  }

 private:
  uint64_t capacity_ = 0;
  uint32_t ids_ = 0;             // the last one given
  std::vector<uint32_t> slots_;  // who is there
};

}  // namespace verbena::sim
