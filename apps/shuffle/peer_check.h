// When to check peers: rarely, and never for a record's sake.
#pragma once

#include <cstdint>

#include "verbena/clock.h"

namespace verbena::shuffle_app {

class PeerCheck {
 public:
  // What a poll that found something, or nothing, counts.
  static constexpr uint32_t kBusy = 1;
  static constexpr uint32_t kIdle = 64;

  // Called at each poll. True about every 10 ms; the clock is read once in 256 idle polls.
  bool due(uint32_t weight) {
    polls_ += weight;
    if (polls_ < kPollsPerClock) [[likely]]
      return false;
    polls_ = 0;
    const uint64_t now = now_ns();
    if (now - last_ns_ < kPeriodNs) return false;
    last_ns_ = now;
    return true;
  }

 private:
  static constexpr uint32_t kPollsPerClock = 16384;
  static constexpr uint64_t kPeriodNs = 10'000'000;

  uint32_t polls_ = 0;
  uint64_t last_ns_ = now_ns();
};

}  // namespace verbena::shuffle_app
