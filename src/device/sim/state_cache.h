// An on-chip cache of state, as far as it matters: whether an access hits.
//
// Hits are drawn: while the active set is larger than the cache, an access misses with the
// probability that its state is not among what fits. A cache with a fixed replacement order and
// misses that delay the work behind them falls into one of two states, by the order of the start
// and the length of batches; real devices do not. State that was used just before is always there:
// packets that follow each other are not drawn for each by itself.
#pragma once

#include <algorithm>
#include <cstdint>

#include "src/base/runtime.h"

namespace verbena::sim {

// When a piece of state was used last; part of what has the state.
struct CacheStamp {
  uint32_t access = 0;  // the lower half of the access's number, from 1; 0: there was none
  uint32_t epoch = 0;   // in which it was counted as active
};

class StateCache {
 public:
  // `capacity` in the units of touch()'s size; `window`: accesses whose state is there in any case.
  void configure(uint64_t capacity, uint64_t window) {
    capacity_ = capacity;
    window_ = window;
  }

  // One access; false: a miss.
  bool touch(CacheStamp& stamp, uint64_t size, Random& dice) {
    ++accesses_;
    if (accesses_ >= epoch_end_) begin_epoch();
    const auto access = static_cast<uint32_t>(accesses_);
    const bool recent = stamp.access != 0 && access - stamp.access <= window_;
    if (stamp.epoch != epoch_) {
      stamp.epoch = epoch_;
      counted_ += size;
      ++members_;
    }
    stamp.access = access;
    const uint64_t active = std::max(counted_, active_before_);
    if (recent || active <= capacity_) return true;
    const bool miss = dice.below(active) >= capacity_;
    misses_ += miss ? 1 : 0;
    return !miss;
  }

  uint64_t accesses() const { return accesses_; }
  uint64_t misses() const { return misses_; }

 private:
  // Long enough that everything in use is counted, short enough to forget what is not.
  static constexpr uint64_t kAccessesPerMember = 64;
  static constexpr uint64_t kLeastAccesses = 1024;

  void begin_epoch() {
    active_before_ = counted_;
    epoch_end_ = accesses_ + std::max(kLeastAccesses, kAccessesPerMember * members_);
    counted_ = 0;
    members_ = 0;
    ++epoch_;
  }

  uint64_t capacity_ = 0;
  uint64_t window_ = 0;
  uint64_t accesses_ = 0;
  uint64_t misses_ = 0;
  uint64_t epoch_end_ = kLeastAccesses;
  uint32_t epoch_ = 1;
  uint64_t counted_ = 0;
  uint64_t members_ = 0;
  uint64_t active_before_ = 0;
};

}  // namespace verbena::sim
