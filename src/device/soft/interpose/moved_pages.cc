// mremap() of pages that soft0 shares. They lie in a file at the offset of their address, and
// behind them lie other pages: so they neither move nor grow, but are copied to new pages, as the
// program's private memory would look.
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstring>

#include "src/device/soft/interpose/installed.h"
#include "src/device/soft/interpose/memory_calls.h"
#include "src/device/soft/interpose/replace.h"

namespace verbena::soft::interpose {
namespace {

bool overlap(const void* first, size_t first_length, const void* second, size_t second_length) {
  const auto first_begin = reinterpret_cast<uintptr_t>(first);
  const auto second_begin = reinterpret_cast<uintptr_t>(second);
  return first_begin < second_begin + second_length && second_begin < first_begin + first_length;
}

void* fail(int error) {
  errno = error;
  return MAP_FAILED;
}

// A moved mapping's contents at `new_address`, or where the kernel likes if that is null. With
// `keeps_mapping`, the old address has pages without contents then.
void* copy_to_new_pages(void* address, size_t old_length, size_t length, void* new_address,
                        bool keeps_mapping) {
  const int protection = rnic().protection_of(address, old_length);
  if (protection < 0) return fail(EFAULT);
  if ((protection & PROT_READ) == 0) return fail(ENOMEM);
  const int fixed = new_address != nullptr ? MAP_FIXED : 0;
  void* copy = next_mmap(new_address, length, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0);
  if (copy == MAP_FAILED) return copy;
  std::memcpy(copy, address, std::min(old_length, length));
  if (protection != (PROT_READ | PROT_WRITE)) mprotect(copy, length, protection);
  release(address, old_length);
  if (keeps_mapping) {
    next_mmap(address, old_length, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  } else {
    next_munmap(address, old_length);
  }
  return copy;
}

}  // namespace
}  // namespace verbena::soft::interpose

using namespace verbena::soft::interpose;  // NOLINT: definitions below are global

VERBENA_REPLACE(mremap)
void* verbena_mremap(void* address, size_t old_length, size_t length, int flags, ...) noexcept {
  void* new_address = nullptr;
  const bool fixed = (flags & MREMAP_FIXED) != 0;
  if (fixed) {
    va_list arguments;
    va_start(arguments, flags);
    new_address = va_arg(arguments, void*);
    va_end(arguments);
  }
  const size_t had = whole_pages(old_length);
  const size_t wanted = whole_pages(length);
  // What the kernel refuses, and an old length of 0, which duplicates a mapping that the program
  // itself shares.
  const bool too_long = had < old_length || wanted < length;
  const bool keeps_mapping = (flags & MREMAP_DONTUNMAP) != 0;
  constexpr int kKnownFlags = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
  const bool bad_flags = (flags & ~kKnownFlags) != 0 ||
                         (keeps_mapping && ((flags & MREMAP_MAYMOVE) == 0 || had != wanted));
  const bool bad_target = fixed && (!starts_a_page(new_address) || (flags & MREMAP_MAYMOVE) == 0 ||
                                    overlap(address, had, new_address, wanted));
  if (length == 0 || old_length == 0 || too_long || bad_flags || !starts_a_page(address) ||
      bad_target) {
    return next_mremap(address, old_length, length, flags, new_address);
  }

  if (fixed) release(new_address, wanted);
  if ((fixed || keeps_mapping || wanted > had) && peers_share(address, had)) {
    if ((flags & MREMAP_MAYMOVE) == 0) return fail(ENOMEM);
    return copy_to_new_pages(address, had, wanted, new_address, keeps_mapping);
  }
  if (wanted < had) release(static_cast<char*>(address) + wanted, had - wanted);
  return next_mremap(address, old_length, length, flags, new_address);
}
