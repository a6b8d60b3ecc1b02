// The places that one write after the other uses.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "src/base/assert.h"
#include "src/base/runtime.h"
#include "src/bench/remote/remote_settings.h"

namespace verbena::bench {

// Numbers below `count`, of which small ones are drawn more often: the probability of number i is
// proportional to 1 / (i + 1)^0.99. By rejection from a continuous distribution with the same
// exponent (Hoermann and Derflinger 1996), so without a table.
class ZipfNumbers {
 public:
  explicit ZipfNumbers(uint64_t count)
      : count_(count),
        from_(integral(1.5) - 1),
        to_(integral(static_cast<double>(count) + 0.5)),
        shortcut_(2 - inverse(integral(2.5) - weight(2))) {
    VERBENA_ASSERT(count >= 1);
  }

  uint64_t draw(Random& random) const {
    for (;;) {
      const double uniform = static_cast<double>(random.next() >> 11) * 0x1p-53;
      const double at = to_ + uniform * (from_ - to_);
      const double x = inverse(at);
      const double rounded =
          std::fmin(std::fmax(std::floor(x + 0.5), 1), static_cast<double>(count_));
      if (rounded - x <= shortcut_ || at >= integral(rounded + 0.5) - weight(rounded)) {
        return static_cast<uint64_t>(rounded) - 1;
      }
    }
  }

 private:
  static constexpr double kExponent = 0.99;
  static double weight(double x) { return std::pow(x, -kExponent); }
  // Of weight(), but for a constant; and its inverse.
  static double integral(double x) { return std::pow(x, 1 - kExponent) / (1 - kExponent); }
  static double inverse(double at) { return std::pow(at * (1 - kExponent), 1 / (1 - kExponent)); }

  uint64_t count_;
  double from_;
  double to_;
  double shortcut_;
};

// Places are numbered from 0 on. The often used ones of zipf are spread over all, as they are where
// keys are hashed; drawing one takes as long as a write, so a list of them is drawn beforehand.
class WrittenPlaces {
 public:
  WrittenPlaces(WritePattern pattern, uint64_t count, uint64_t seed)
      : pattern_(pattern), count_(count), random_(seed) {
    if (pattern != WritePattern::kZipf) return;
    const ZipfNumbers numbers(count);
    drawn_.resize(kDrawn);
    for (uint64_t& place : drawn_) place = Random(numbers.draw(random_)).below(count);
  }

  uint64_t next() {
    switch (pattern_) {
      case WritePattern::kSequential: {
        const uint64_t place = next_;
        next_ = place + 1 == count_ ? 0 : place + 1;
        return place;
      }
      case WritePattern::kRandom:
        return random_.below(count_);
      case WritePattern::kZipf:
        break;
    }
    return drawn_[next_++ % kDrawn];
  }

 private:
  static constexpr uint64_t kDrawn = uint64_t{1} << 16;

  WritePattern pattern_;
  uint64_t count_;
  uint64_t next_ = 0;
  Random random_;
  std::vector<uint64_t> drawn_;
};

}  // namespace verbena::bench
