#include "src/base/assert.h"

#include <cstdio>
#include <cstdlib>

namespace verbena::internal {

[[gnu::cold]] void assertion_failed(const char* condition, const char* file, int line) {
  // Neither the log nor the heap: either may be what is broken.
  std::fprintf(stderr, "verbena: %s:%d: assertion failed: %s\n", file, line, condition);
  std::abort();
}

}  // namespace verbena::internal
