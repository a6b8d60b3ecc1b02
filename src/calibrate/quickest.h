// The quickest of several attempts: the one that nothing disturbed.
#pragma once

#include <algorithm>
#include <cstdint>

#include "src/base/runtime.h"

namespace verbena::calibrate {

inline constexpr int kAttempts = 5;

// Nanoseconds for each of `rounds` calls of `body(number)`.
template <typename Body>
double quickest_ns(uint64_t rounds, Body&& body) {
  double quickest = 1e18;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const uint64_t begun = now_ns();
    for (uint64_t i = 0; i < rounds; ++i) body(i);
    quickest =
        std::min(quickest, static_cast<double>(now_ns() - begun) / static_cast<double>(rounds));
  }
  return quickest;
}

}  // namespace verbena::calibrate
