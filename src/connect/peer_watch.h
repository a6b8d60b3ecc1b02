// When to check whether peers are still alive: rarely, and never for a message's sake.
#pragma once

#include <cstdint>

#include "src/base/runtime.h"

namespace verbena::connect {

class PeerWatch {
 public:
  // Called once per poll with what it found. True about every 10 ms: then check whether the peers
  // that were silent since the last time still live. Costs an addition; the clock is read once in
  // 256 polls that found nothing.
  bool due(uint32_t found) {
    looks_ += found != 0 ? 1 : kIdleWeight;
    if (looks_ < kLooksPerClock) [[likely]]
      return false;
    return period_is_over();
  }

  // Something is wrong already: the next call is true.
  void hurry() {
    looks_ = kLooksPerClock;
    last_ns_ = 0;
  }

 private:
  static constexpr uint32_t kLooksPerClock = 16384;
  static constexpr uint32_t kIdleWeight = 64;
  static constexpr uint64_t kPeriodNs = 10'000'000;

  bool period_is_over();

  uint32_t looks_ = 0;
  uint64_t last_ns_ = now_ns();
};

// Whether one silent peer has gone, by its control connection. Two checks in a row must say so:
// what it sent before it left is taken in between.
class SilenceCheck {
 public:
  // `progress` is any number that has changed if the peer was heard of.
  template <typename PeerClosed>
  bool gone(uint64_t progress, PeerClosed&& peer_closed) {
    if (progress != last_progress_) {
      last_progress_ = progress;
      closed_before_ = false;
      return false;
    }
    const bool closed = peer_closed();
    const bool gone = closed && closed_before_;
    closed_before_ = closed;
    return gone;
  }

 private:
  uint64_t last_progress_ = 0;
  bool closed_before_ = false;
};

}  // namespace verbena::connect
