// The instructions of single polls, counted by valgrind's callgrind: for machines whose processor
// does not count them.
//
// Callgrind counts while this thread is between begin() and end(). A poll that found messages is
// written to a file of its own (callgrind_dump.h); one that found none is forgotten. So waiting,
// which takes as many instructions as it takes time, is in no number.
#pragma once

#include <cstdint>

#include "src/base/sanitizer.h"

// Programs with a sanitizer in them cannot run under valgrind.
#if __has_include(<valgrind/callgrind.h>) && !VERBENA_THREAD_SANITIZER && !VERBENA_ADDRESS_SANITIZER
#include <valgrind/callgrind.h>
#define VERBENA_CALLGRIND 1
#else
#define VERBENA_CALLGRIND 0
#endif

namespace verbena::bench {

// Whose polls are counted. A dispatcher works for the requesters of its node.
enum class Side : uint8_t { kRequester, kResponder, kDispatcher };

class CallgrindCounter {
 public:
  // Whether this build can count so.
  static constexpr bool kBuiltIn = VERBENA_CALLGRIND != 0;
  // Whether callgrind, or another of valgrind's tools, runs this process.
  static bool running();

  // Belongs to the calling thread. First writes what begin() and end() cost with nothing between.
  explicit CallgrindCounter(Side side);

#if VERBENA_CALLGRIND
  static void begin() { CALLGRIND_TOGGLE_COLLECT; }
  void end(uint32_t messages) {
    CALLGRIND_TOGGLE_COLLECT;
    keep_or_forget(messages);
  }
#else
  static void begin() {}
  void end(uint32_t /*messages*/) {}
#endif

 private:
  void keep_or_forget(uint32_t messages);

  Side side_;
  uint32_t with_messages_ = 0;  // polls so far
};

}  // namespace verbena::bench
