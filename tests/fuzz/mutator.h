// Inputs made of others: what a broken sender, a torn file or a slip of the hand makes of right
// ones.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "src/base/runtime.h"
#include "tests/fuzz/fuzz_target.h"

namespace verbena::fuzz {

// One of `seeds`, changed in 1 to 8 places: bits, numbers at their limits, bytes that are gone,
// repeated or foreign, parts of other seeds. At most `max_bytes` long.
Bytes mutated(std::span<const Bytes> seeds, Random& random, size_t max_bytes);

}  // namespace verbena::fuzz
