// Seeds for the random choices of many threads.
#pragma once

#include <cstdint>

#include "src/base/runtime.h"

namespace verbena::bench {

// Of stream `number` of a run: no stream has a part of another one. Random steps by a constant, so
// seeds that differ by a multiple of it would be one stream, shifted.
inline uint64_t stream_seed(uint64_t seed, uint64_t number) {
  return Random(Random(seed).next() ^ number).next();
}

}  // namespace verbena::bench
