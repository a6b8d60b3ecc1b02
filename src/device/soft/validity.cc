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

int refuse_inherited(const char* name) {
  return fail(EPERM, fmt::format("soft0: this {} is of the process that this one was forked from; "
                                 "leave it to that, and open the device anew here",
                                 name));
}

int refuse_unknown(const char* name) {
  return fail(ENOENT, fmt::format("soft0: no {} has this handle: the object's handle was "
                                  "overwritten; look for a stray write",
                                  name));
}

int check_valid_context(const ibv_context* verbs) {
  if (verbs == nullptr) return refuse_invalid(Context::kName);
  return check_word(as_context(const_cast<ibv_context*>(verbs)));
}

bool count_in(std::atomic<uint32_t>& count, uint32_t limit, const char* name) {
  uint32_t before = count.load(std::memory_order_relaxed);
  do {
    if (before >= limit) {
      fail(ENOMEM, fmt::format("soft0: all {} {}s of this process are in use; destroy some, or use "
                               "another process",
                               limit, name));
      return false;
    }
  } while (!count.compare_exchange_weak(before, before + 1, std::memory_order_relaxed));
  return true;
}

}  // namespace verbena::soft
