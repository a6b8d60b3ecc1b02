#include "src/device/soft/validity.h"

#include <fmt/format.h>

#include <cerrno>

#include "src/device/soft/objects.h"

namespace verbena::soft {

int refuse_invalid(const char* name) {
  return fail(EINVAL, fmt::format("soft0: this is no {}: it was destroyed already, or its memory "
                                  "was overwritten; look for a second destroy or a stray write",
                                  name));
}

}  // namespace verbena::soft
