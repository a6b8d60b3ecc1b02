// Ranks by Zipf's law, as the Yahoo! Cloud Serving Benchmark draws keys.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "src/base/assert.h"
#include "src/base/runtime.h"

namespace verbena::bench {

// Ranks below `count`, of which rank i is drawn with a probability proportional to
// 1 / (i + 1)^0.99, by the method of Gray et al., "Quickly Generating Billion-Record Synthetic
// Databases" (1994), figure 3, which YCSB uses: a constant, zeta(count), and one power for each
// draw.
class ZipfRanks {
 public:
  static constexpr double kTheta = 0.99;

  explicit ZipfRanks(uint64_t count) : count_(count), zeta_(zeta(count)) {
    VERBENA_ASSERT(count >= 1);
    fit();
  }

  uint64_t draw(Random& random) const {
    const double uniform = static_cast<double>(random.next() >> 11) * 0x1p-53;
    const double scaled = uniform * zeta_;
    if (scaled < 1) return 0;
    if (scaled < kZetaOfTwo) return count_ > 1 ? 1 : 0;
    const double rank =
        static_cast<double>(count_) * std::pow(eta_ * (uniform - 1) + 1, 1 / (1 - kTheta));
    return std::min(static_cast<uint64_t>(rank), count_ - 1);
  }

  // One rank more.
  void grow() {
    zeta_ += term(static_cast<double>(++count_));
    fit();
  }

  uint64_t count() const { return count_; }

  // The sum of 1 / i^0.99 for i from 1 to `count`: the first terms, and for the others the formula
  // of Euler and Maclaurin, whose error is below 1e-12.
  static double zeta(uint64_t count) {
    constexpr uint64_t kSummed = 1000;
    const uint64_t summed = std::min(count, kSummed);
    double sum = 0;
    for (uint64_t i = 1; i <= summed; ++i) sum += term(static_cast<double>(i));
    if (summed == count) return sum;
    const auto from = static_cast<double>(summed);
    const auto to = static_cast<double>(count);
    return sum + (std::pow(to, 1 - kTheta) - std::pow(from, 1 - kTheta)) / (1 - kTheta) +
           (term(to) - term(from)) / 2 + kTheta * (term(from) / from - term(to) / to) / 12;
  }

 private:
  static double term(double i) { return std::pow(i, -kTheta); }
  static inline const double kZetaOfTwo = 1 + term(2);

  void fit() {
    eta_ = (1 - std::pow(2 / static_cast<double>(count_), 1 - kTheta)) / (1 - kZetaOfTwo / zeta_);
  }

  uint64_t count_;
  double zeta_;
  double eta_ = 0;
};

}  // namespace verbena::bench
