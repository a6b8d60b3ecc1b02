// What an atomic operation does to values: by the CPU that has them.
#pragma once

#include <cstdint>

#include "verbena/message_one_sided.h"

namespace verbena::message {

inline constexpr uint32_t kAtomicTypes = 14;
inline constexpr uint32_t kAtomicOperations = 19;

// `count` values at `values`, one after the other; `operands` and `compared` are as many, or null
// where the operation has none. What they were is written to `before`, if it is not null. Nothing
// need be aligned. Needs has_atomic().
void apply_atomic(AtomicType type, AtomicOperation operation, char* values, const char* operands,
                  const char* compared, char* before, uint64_t count);

}  // namespace verbena::message
