// The seed of the tests: the same in every run, so that a red one means a defect of what changed.
// scripts/soak draws others.
#pragma once

#include <cstdlib>

namespace verbena {

// To be called at the beginning of main(), before anything asks for run_seed(). Programs that the
// tests start inherit the seed.
inline void fix_seed_of_tests() { setenv("VERBENA_SEED", "1", /*overwrite=*/0); }

}  // namespace verbena
