// Whether a short message or put leaves from the user's buffer, or a short get comes into it,
// without a copy ("bufreuse" 3.3): what the table of used buffers says, and the registration.
//
//   if (bytes >= reuse.least_bytes() && !reuse.skips()) {
//     internal::CachedRegion* const region = reuse.take(memory, buffer, bytes, path);
//     if (region != nullptr) ...   // from there; MessageMemory::give_back(&region) once it is over
//   }
//
// **Rests**. After many messages in a row from buffers that were not used before, or that the table
// does not take, looking for the next ones only costs. So they are not looked for at all, but for
// some at the end of every kRest: a program that begins to use buffers again is noticed then. (The
// paper goes on to look.)
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

  // Once for each message that might be: whether it is copied without a look, see above.
  bool skips() {
    if (resting_ == 0) [[likely]]
      return false;
    return --resting_ >= kLooks;
  }
  // Counts a use of the buffer. A reference to its registration, if the message is to be sent from
  // there, or to come there; else null. Registers if that is due.
  internal::CachedRegion* take(MessageMemory& memory, const void* buffer, uint32_t bytes,
                               ReusePath path);

  // One line; of no buffer: from how many reuses on it is sent from its place. `in_place`: whether
  // the next use is.
  std::string explain(const void* buffer, uint64_t bytes, ReusePath path, bool* in_place);
  BufferUseStatistics statistics() const {
    return table_ ? table_->statistics() : BufferUseStatistics{};
  }

 private:
  static constexpr uint32_t kPaths = 3;
  static constexpr uint32_t kUnknownInARow = 1024;
  static constexpr uint32_t kRest = 16384;
  static constexpr uint32_t kLooks = 128;

  const ReuseThresholds& thresholds(ReusePath path) const {
    return thresholds_[measured_ ? 0 : static_cast<uint32_t>(path)];
  }
  uint64_t least_bytes_ = ~uint64_t{0};
  bool adapts_ = true;
  uint32_t resting_ = 0;  // messages to the end of a rest
  uint32_t unknown_ = 0;  // messages in a row whose buffers were not in the table
  unsigned access_ = 0;
  bool measured_ = false;
  ReuseCostModel costs_;  // as they were measured
  std::array<ReuseThresholds, kPaths> thresholds_;
  std::optional<BufferUseTable> table_;
};

}  // namespace verbena::message
