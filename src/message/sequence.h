// The order of one peer's messages, which come by two channels ("mpiiba" 4.5).
//
// Each message has a packet sequence number. Both channels deliver in order, so the next message is
// the first that waits in one of them; those ahead of it stay where they are.
#pragma once

#include <cstdint>

namespace verbena::message {

class Sequence {
 public:
  enum class Place : uint8_t {
    kNext,
    kAhead,   // others, on the other channel, come first
    kBroken,  // it came before, or is ahead by more than a peer's credits allow
  };

  Sequence() = default;
  // `window`: messages that may be on their way at once, by both channels together.
  explicit Sequence(uint32_t window, uint32_t first = 0) : window_(window), expected_(first) {}

  Place place(uint32_t number) const {
    const uint32_t ahead = number - expected_;
    if (ahead == 0) [[likely]]
      return Place::kNext;
    return ahead < window_ ? Place::kAhead : Place::kBroken;
  }
  void advance() { ++expected_; }
  uint32_t expected() const { return expected_; }

 private:
  uint32_t window_ = 1;
  uint32_t expected_ = 0;
};

}  // namespace verbena::message
