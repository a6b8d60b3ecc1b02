// The processor's cycle counter: the cheapest way to time what lasts tens of nanoseconds, and to
// say how many cycles a message cost.
//
//   const uint64_t start = read_tsc();
//   ...
//   const double ns = tsc_to_ns(read_tsc() - start);
//
// On x86-64 this is the time stamp counter, which runs at one constant rate on every core of
// today's processors: its cycles are not those of the core's clock, which changes with load.
// Elsewhere the counter is the monotonic clock and its cycle one nanosecond.
#pragma once

#include <cstdint>

#include "src/base/runtime.h"

namespace verbena {

// Not ordered against the instructions around it: the processor may read it some ten nanoseconds
// early or late.
inline uint64_t read_tsc() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#else
  return now_ns();
#endif
}

// Waits until the loads before it are done and lets nothing after it start earlier: around a single
// short operation.
inline uint64_t read_tsc_ordered() {
#if defined(__x86_64__)
  __builtin_ia32_lfence();
  const uint64_t cycles = __builtin_ia32_rdtsc();
  __builtin_ia32_lfence();
  return cycles;
#else
  return now_ns();
#endif
}

// Cycles per nanosecond, measured once against now_ns(): the first call takes 20 ms, so make it
// before measuring.
double tsc_cycles_per_ns();

inline double tsc_to_ns(uint64_t cycles) {
  return static_cast<double>(cycles) / tsc_cycles_per_ns();
}

// Whether the counter runs at one rate on all cores and never stops. Where it does not, only
// now_ns() is right.
bool tsc_is_steady();

}  // namespace verbena
