// Assertions: what must hold unless Verbena itself is wrong. What a user, a peer or the machine can
// cause is a Status.
//
// VERBENA_ASSERT stays on in every build: for the control path, and wherever the check is cheap
// beside the work. VERBENA_DEBUG_ASSERT is for the data path: on in Debug and sanitizer builds,
// nothing at all under NDEBUG. Both print one line (condition, file, line) and abort, so that a
// core dump shows the place.
#pragma once

namespace verbena::internal {

[[noreturn]] void assertion_failed(const char* condition, const char* file, int line);

}  // namespace verbena::internal

#define VERBENA_ASSERT(condition) \
  (static_cast<bool>(condition)   \
       ? static_cast<void>(0)     \
       : ::verbena::internal::assertion_failed(#condition, __FILE__, __LINE__))

#ifdef NDEBUG
// Compiled, so that it stays correct, but never evaluated.
#define VERBENA_DEBUG_ASSERT(condition) static_cast<void>(sizeof(static_cast<bool>(condition)))
#else
#define VERBENA_DEBUG_ASSERT(condition) VERBENA_ASSERT(condition)
#endif
