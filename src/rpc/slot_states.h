// The states of a requester's slots. Few of them lie in the object itself: of thousands of
// connections, most have one slot.
#pragma once

#include <cstdint>

#include "src/base/assert.h"

namespace verbena::rpc {

enum class SlotState : uint8_t { kFree, kWaiting, kFailed };

class SlotStates {
 public:
  // All free.
  explicit SlotStates(uint32_t count)
      : states_(count > kFew ? new SlotState[count]{} : few_), count_(count) {}
  ~SlotStates() {
    if (states_ != few_) delete[] states_;
  }
  SlotStates(const SlotStates&) = delete;
  SlotStates& operator=(const SlotStates&) = delete;

  uint32_t size() const { return count_; }
  SlotState& operator[](uint32_t slot) {
    VERBENA_DEBUG_ASSERT(slot < count_);
    return states_[slot];
  }
  SlotState operator[](uint32_t slot) const {
    VERBENA_DEBUG_ASSERT(slot < count_);
    return states_[slot];
  }
  void set_all(SlotState state) {
    for (uint32_t slot = 0; slot < count_; ++slot) states_[slot] = state;
  }

 private:
  static constexpr uint32_t kFew = 4;

  SlotState* states_;
  uint32_t count_;
  SlotState few_[kFew] = {};
};

}  // namespace verbena::rpc
