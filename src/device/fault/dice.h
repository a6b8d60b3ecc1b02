// The draws of one queue: the same ones in each run with the same seed.
#pragma once

#include <cstdint>

#include "src/base/runtime.h"

namespace verbena::fault {

// Which of a queue's faults; keeps their draws apart.
enum class Stream : uint64_t { kDelay = 1, kReceive, kSharedReceive, kCompletion, kError };

class Dice {
 public:
  // `number`: of the queue, in order of making.
  Dice(uint64_t seed, Stream stream, uint64_t number)
      : random_(
            Random(Random(seed).next() ^ (static_cast<uint64_t>(stream) << 56 | number)).next()) {}

  bool hit(double probability) {
    constexpr double kTwoTo53 = 9007199254740992.0;
    return static_cast<double>(random_.next() >> 11) < probability * kTwoTo53;
  }
  uint64_t below(uint64_t bound) { return random_.below(bound); }

 private:
  Random random_;
};

}  // namespace verbena::fault
