// The seed of the tests: the same in every run, so that a red one means a defect of what changed.
// scripts/soak draws others.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace verbena {

// To be called at the beginning of main(), before anything asks for run_seed(). Programs that the
// tests start inherit the seed.
inline void fix_seed_of_tests() { setenv("VERBENA_SEED", "1", /*overwrite=*/0); }

// What scripts/soak adds up: "kills", or "seeds" from run_seed() on.
inline void report_count(const char* what, uint64_t count) {
  std::printf("counted: %s %llu\n", what, static_cast<unsigned long long>(count));
}

}  // namespace verbena
