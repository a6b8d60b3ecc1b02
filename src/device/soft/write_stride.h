// Foresees where a queue pair's WRITEs go that are as far apart as those before: to the slots of a
// ring. Lines that the peer has read take long to come back, and stores leave a CPU in order: who
// does not ask for those of the next messages lets each message wait for the one before.
#pragma once

#include <cstdint>

namespace verbena::soft {

class WriteStride {
 public:
  static constexpr uint64_t kAhead = 4;
  static constexpr uint64_t kNone = ~uint64_t{0};

  // Where the WRITE goes that follows the one at `address` by kAhead; kNone where the last two
  // steps were not alike. It may lie anywhere.
  uint64_t foresee(uint64_t address) {
    const uint64_t step = address - last_;
    const bool is_alike = step == step_ && step != 0;
    step_ = step;
    last_ = address;
    return is_alike ? address + kAhead * step : kNone;
  }

 private:
  uint64_t last_ = 0;
  uint64_t step_ = 0;
};

}  // namespace verbena::soft
