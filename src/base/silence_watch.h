// Whether something has made no progress for too long, counted in time in which the checking thread
// ran.
//
// A machine or a process that was stopped and goes on later has lost time in which nobody could
// have moved. So of the time between two checks at most kMaxGapNs counts.
#pragma once

#include <algorithm>
#include <cstdint>

#include "src/base/virtual_time.h"

namespace verbena {

class SilenceWatch {
 public:
  static constexpr uint64_t kMaxGapNs = 1'000'000'000;

  SilenceWatch(uint64_t limit_ns, uint64_t now_ns) : limit_ns_(limit_ns), checked_ns_(now_ns) {}

  // Call it often, compared with the limit. `progress` is any number that changes while things
  // move.
  bool too_long(uint64_t now_ns, uint64_t progress) {
    const uint64_t passed_ns = now_ns - checked_ns_;
    checked_ns_ = now_ns;
    if (progress != progress_) {
      progress_ = progress;
      silent_ns_ = 0;
    } else {
      // Virtual time is never lost.
      silent_ns_ += VirtualTime::current() != nullptr ? passed_ns : std::min(passed_ns, kMaxGapNs);
    }
    return silent_ns_ > limit_ns_;
  }
  uint64_t silent_ns() const { return silent_ns_; }

 private:
  uint64_t limit_ns_;
  uint64_t checked_ns_;
  uint64_t progress_ = 0;
  uint64_t silent_ns_ = 0;
};

}  // namespace verbena
