// Whether a short message or put leaves from the user's buffer, or a short get comes into it,
// without a copy ("bufreuse" 3.3): what the table of used buffers says, and the registration.
//
//   if (bytes >= reuse.least_bytes()) {
//     internal::CachedRegion* const region = reuse.take(memory, buffer, bytes, path);
//     if (region != nullptr) ...   // from there; MessageMemory::give_back(&region) once it is over
//   }
//
// **Rests**. While the table is closed or full, it cannot tell anything new of the buffers that it
// does not have, and looking for them costs. So after a lot of such messages in a row the next ones
// are not looked for at all, but for a few of every kRest: a program that begins to use a buffer of
// the table again is noticed then. (The paper goes on to look.)
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "src/device/step_costs.h"
#include "src/memory/buffer_use.h"
#include "src/memory/reuse_thresholds.h"
#include "src/message/message_memory.h"
#include "verbena/message.h"

namespace verbena::message {

class BufferReuse {
 public:
  // Nothing is ever taken.
  BufferReuse() = default;

  // For registrations with `access`, as the options ask for it; messages below `least_bytes` are
  // always copied. Control path: with ReusedBuffers::kMeasured it measures.
  Status open(const MessengerOptions& options, const StepCosts& steps, uint32_t least_bytes,
              unsigned access, MessageMemory& memory);

  bool is_open() const { return table_.has_value(); }
  // Below, nothing is ever taken.
  uint64_t least_bytes() const { return least_bytes_; }

  // Counts a use of the buffer. A reference to its registration, if the message is to be sent from
  // there, or to come there; else null. Registers if that is due.
  internal::CachedRegion* take(MessageMemory& memory, const void* buffer, uint32_t bytes,
                               ReusePath path) {
    if (resting_ != 0) [[unlikely]] {
      // Mostly: see above.
      if (--resting_ >= kLooks) return nullptr;
    }
    return look_and_take(memory, buffer, bytes, path);
  }

  // One line; of no buffer: from how many reuses on it is sent from its place. `in_place`: whether
  // the next use is.
  std::string explain(const void* buffer, uint64_t bytes, ReusePath path, bool* in_place);
  BufferUseStatistics statistics() const {
    return table_ ? table_->statistics() : BufferUseStatistics{};
  }

 private:
  static constexpr uint32_t kPaths = 3;
  static constexpr uint32_t kUnknownInARow = 256;
  static constexpr uint32_t kRest = 16384;
  static constexpr uint32_t kLooks = 128;

  const ReuseThresholds& thresholds(ReusePath path) const {
    return thresholds_[measured_ ? 0 : static_cast<uint32_t>(path)];
  }
  internal::CachedRegion* look_and_take(MessageMemory& memory, const void* buffer, uint32_t bytes,
                                        ReusePath path);

  uint64_t least_bytes_ = ~uint64_t{0};
  uint32_t resting_ = 0;  // messages to the end of a rest
  uint32_t unknown_ = 0;  // messages in a row whose buffers are not in the table
  unsigned access_ = 0;
  bool measured_ = false;
  ReuseCostModel costs_;  // as they were measured
  std::array<ReuseThresholds, kPaths> thresholds_;
  std::optional<BufferUseTable> table_;
};

}  // namespace verbena::message
