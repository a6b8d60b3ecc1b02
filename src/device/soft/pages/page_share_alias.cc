// Second mappings of the memory file in its own process, as a peer has them.
#include <sys/mman.h>
#include <sys/syscall.h>

#include <cerrno>

#include "src/device/soft/pages/page_share_internal.h"
#include "src/device/soft/pages/raw_syscall.h"

namespace verbena::soft {

struct PageShare::Alias {
  uint64_t begin;
  uint64_t end;
  const Alias* next;
};

std::byte* PageShare::map_alias(uint64_t offset_bytes, uint64_t length_bytes) {
  // With the lock, so that no search for own mappings finds this one before it is recorded.
  const std::lock_guard lock(mutex_);
  std::byte* base = raw_map(0, length_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                            file_.get(), offset_bytes);
  if (base == nullptr) return nullptr;
  const uint64_t begin = as_number(base);
  const auto length = static_cast<long>(length_bytes);
  // A child would write into the parent's memory, and a core dump holds the pages already.
  const long kept_from_child = raw_syscall(SYS_madvise, as_argument(base), length, MADV_DONTFORK);
  if (is_error(kept_from_child)) {
    raw_unmap(begin, length_bytes);
    errno = static_cast<int>(-kept_from_child);
    return nullptr;
  }
  raw_syscall(SYS_madvise, as_argument(base), length, MADV_DONTDUMP);
  // Release: forget() and shares_any() read the list without the lock. It is never freed.
  aliases_.store(new Alias{begin, begin + length_bytes, aliases_.load(std::memory_order_relaxed)},
                 std::memory_order_release);
  return base;
}

bool PageShare::is_alias(const Vma& vma) const {
  const Alias* alias = aliases_.load(std::memory_order_acquire);
  while (alias != nullptr && (vma.start < alias->begin || vma.start >= alias->end)) {
    alias = alias->next;
  }
  return alias != nullptr;
}

}  // namespace verbena::soft
