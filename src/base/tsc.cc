#include "src/base/tsc.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace verbena {

#if defined(__x86_64__)

namespace {

struct Instant {
  uint64_t cycles;
  uint64_t ns;
};

// Both clocks at one moment: of several tries the one during which least else happened.
Instant read_both() {
  Instant best{};
  uint64_t best_gap = UINT64_MAX;
  for (int i = 0; i < 16; ++i) {
    const uint64_t before = read_tsc_ordered();
    const uint64_t ns = now_ns();
    const uint64_t after = read_tsc_ordered();
    if (after - before >= best_gap) continue;
    best_gap = after - before;
    best = {before + (after - before) / 2, ns};
  }
  return best;
}

double measure_cycles_per_ns() {
  constexpr uint64_t kMeasuredNs = 20'000'000;
  const Instant start = read_both();
  sleep_ns(kMeasuredNs);
  const Instant end = read_both();
  return static_cast<double>(end.cycles - start.cycles) / static_cast<double>(end.ns - start.ns);
}

}  // namespace

double tsc_cycles_per_ns() {
  static const double cycles_per_ns = measure_cycles_per_ns();
  return cycles_per_ns;
}

bool tsc_is_steady() {
  // The flag "invariant TSC" of the leaf for advanced power management.
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  constexpr unsigned kInvariantTsc = 1u << 8;
  return __get_cpuid(0x80000007, &eax, &ebx, &ecx, &edx) == 1 && (edx & kInvariantTsc) != 0;
}

#else

double tsc_cycles_per_ns() { return 1; }
bool tsc_is_steady() { return true; }

#endif

}  // namespace verbena
