// The sending end of channels whose messages travel without a mark: SEND and WRITE_WITH_IMM.
#pragma once

#include <algorithm>
#include <cstdint>

#include "src/base/assert.h"
#include "src/channel/channel.h"

namespace verbena::channel {

// Slots that hold the payload and nothing else.
inline SlotShape unmarked_shape(uint32_t capacity_bytes) {
  return {capacity_bytes, round_up<uint32_t>(std::max(capacity_bytes, 1u), kCacheLineBytes)};
}

class UnmarkedSender {
 public:
  UnmarkedSender() = default;
  // `prepare(SlotRequest&, char* payload, uint32_t slot)` fills in what never changes.
  template <typename Prepare>
  UnmarkedSender(const SenderSetup& setup, Prepare&& prepare)
      : slots_(setup.slots),
        inline_limit_bytes_(setup.inline_limit_bytes),
        requests_(setup.slots.count),
        queue_(setup.queue_pair, setup.send_completions, setup.sizes) {
    for (uint32_t slot = 0; slot < slots_.count; ++slot) {
      prepare(requests_[slot], slots_.slot(slot), slot);
    }
  }

  char* payload(uint32_t slot) const { return slots_.slot(slot); }

  bool post(uint32_t slot, uint32_t bytes) {
    VERBENA_DEBUG_ASSERT(slot < slots_.count && bytes <= slots_.shape.capacity_bytes);
    SlotRequest& request = requests_[slot];
    set_size_or_empty(request, bytes, inline_limit_bytes_);
    return queue_.push(request.request);
  }

  SendQueue& queue() { return queue_; }

 private:
  SlotArray slots_;
  uint32_t inline_limit_bytes_ = 0;
  SlotRequests requests_;
  SendQueue queue_;
};

}  // namespace verbena::channel
