// What sanitizers must be told when a thread goes on with another stack. Nothing in other builds.
#pragma once

#include <cstddef>

#include "src/base/sanitizer.h"

#if VERBENA_ADDRESS_SANITIZER
#include <sanitizer/common_interface_defs.h>
#endif
#if VERBENA_THREAD_SANITIZER
#include <sanitizer/tsan_interface.h>
#endif

namespace verbena::sim {

struct SwitchedStack {
  const void* bottom = nullptr;  // lowest address; of the thread's own stack once it was left
  size_t size_bytes = 0;
  void* fake = nullptr;   // AddressSanitizer's stack beside it
  void* fiber = nullptr;  // ThreadSanitizer's state
};

// Just before the switch. `from` is null where nobody comes back to that stack.
inline void before_switch([[maybe_unused]] SwitchedStack* from,
                          [[maybe_unused]] SwitchedStack& to) {
#if VERBENA_ADDRESS_SANITIZER
  __sanitizer_start_switch_fiber(from != nullptr ? &from->fake : nullptr, to.bottom, to.size_bytes);
#endif
#if VERBENA_THREAD_SANITIZER
  if (from != nullptr && from->fiber == nullptr) from->fiber = __tsan_get_current_fiber();
  if (to.fiber == nullptr) to.fiber = __tsan_create_fiber(0);
  __tsan_switch_to_fiber(to.fiber, 0);
#endif
}

// Just after it, on the new stack.
inline void after_switch([[maybe_unused]] SwitchedStack& from,
                         [[maybe_unused]] SwitchedStack& here) {
#if VERBENA_ADDRESS_SANITIZER
  __sanitizer_finish_switch_fiber(here.fake, &from.bottom, &from.size_bytes);
#endif
}

// When nobody will be on it any more.
inline void end_stack([[maybe_unused]] SwitchedStack& stack) {
#if VERBENA_THREAD_SANITIZER
  if (stack.fiber != nullptr) __tsan_destroy_fiber(stack.fiber);
  stack.fiber = nullptr;
#endif
}

}  // namespace verbena::sim
