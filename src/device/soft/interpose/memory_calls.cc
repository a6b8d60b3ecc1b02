// Tells the software RNIC when the program gives shared pages back, and keeps the meaning that the
// program expects of its memory calls: pages that soft0 shares with peers are a shared mapping,
// though the program asked for a private one. The software RNIC calls the kernel itself where it
// moves pages. The C library does not come here when malloc and free map and unmap large blocks;
// page sharing finds that out when such an address is registered again.
#include "src/device/soft/interpose/memory_calls.h"

#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

#include "src/device/soft/interpose/installed.h"
#include "src/device/soft/interpose/replace.h"

namespace verbena::soft::interpose {
namespace {

// The definitions to call on: null until this library is initialized. Memory allocators call in
// before, and finding them then would allocate; the kernel is called directly so long.
std::atomic<decltype(&::munmap)> found_munmap;
std::atomic<decltype(&::madvise)> found_madvise;
std::atomic<decltype(&::mmap)> found_mmap;
std::atomic<decltype(&::mremap)> found_mremap;
// The software RNIC, once it is to be told; null before, too.
std::atomic<const SoftRnic*> told_rnic;

__attribute__((constructor)) void find_next_functions() {
  found_munmap.store(VERBENA_NEXT(munmap));
  found_madvise.store(VERBENA_NEXT(madvise));
  found_mmap.store(VERBENA_NEXT(mmap));
  found_mremap.store(VERBENA_NEXT(mremap));
  if (rnic().device == nullptr) return;
  rnic().see_discards();
  rnic().allow_poll_pauses();
  told_rnic.store(&rnic());
}

void* as_pointer(long result) { return reinterpret_cast<void*>(result); }

// From memory, without a system call or a lock.
size_t page_bytes() { return getauxval(AT_PAGESZ); }

// False only where the kernel will refuse it: the arguments do not tell all. Keeps errno.
bool can_be_mapped(int protection, int flags, int fd, off_t offset) {
  if (static_cast<size_t>(offset) % page_bytes() != 0) return false;
  if ((flags & MAP_ANONYMOUS) != 0) return true;
  const int error = errno;
  const int status = fcntl(fd, F_GETFL);
  errno = error;
  if (status < 0 || (status & O_PATH) != 0 || (status & O_ACCMODE) == O_WRONLY) return false;
  const int kind = flags & MAP_TYPE;
  const bool writes = kind != MAP_PRIVATE && (protection & PROT_WRITE) != 0;
  return !writes || (status & O_ACCMODE) == O_RDWR;
}

void* map(void* address, size_t length, int protection, int flags, int fd, off_t offset) {
  const bool replaces =
      (flags & MAP_FIXED) != 0 && (flags & MAP_FIXED_NOREPLACE) != MAP_FIXED_NOREPLACE;
  if (replaces && can_be_mapped(protection, flags, fd, offset)) release(address, length);
  return next_mmap(address, length, protection, flags, fd, offset);
}

}  // namespace

int next_munmap(void* address, size_t length) {
  if (auto* found = found_munmap.load(std::memory_order_relaxed)) return found(address, length);
  return static_cast<int>(syscall(SYS_munmap, address, length));
}

int next_madvise(void* address, size_t length, int advice) {
  if (auto* found = found_madvise.load(std::memory_order_relaxed)) {
    return found(address, length, advice);
  }
  return static_cast<int>(syscall(SYS_madvise, address, length, advice));
}

void* next_mmap(void* address, size_t length, int protection, int flags, int fd, off_t offset) {
  if (auto* found = found_mmap.load(std::memory_order_relaxed)) {
    return found(address, length, protection, flags, fd, offset);
  }
  return as_pointer(syscall(SYS_mmap, address, length, protection, flags, fd, offset));
}

void* next_mremap(void* address, size_t old_length, size_t length, int flags, void* new_address) {
  if (auto* found = found_mremap.load(std::memory_order_relaxed)) {
    return found(address, old_length, length, flags, new_address);
  }
  return as_pointer(syscall(SYS_mremap, address, old_length, length, flags, new_address));
}

bool peers_share(const void* address, size_t length) {
  const SoftRnic* told = told_rnic.load(std::memory_order_relaxed);
  return told != nullptr && told->shares_any(address, length);
}

bool starts_a_page(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % page_bytes() == 0;
}

size_t whole_pages(size_t length) {
  return (length + page_bytes() - 1) / page_bytes() * page_bytes();
}

bool release(void* address, size_t length) {
  const bool wraps = whole_pages(length) < length ||
                     reinterpret_cast<uintptr_t>(address) > UINTPTR_MAX - whole_pages(length);
  if (length == 0 || wraps || !starts_a_page(address)) return false;
  if (const SoftRnic* told = told_rnic.load(std::memory_order_relaxed)) {
    told->pages_released(address, length);
  }
  return true;
}

}  // namespace verbena::soft::interpose

using namespace verbena::soft::interpose;  // NOLINT: definitions below are global

VERBENA_REPLACE(munmap) int verbena_munmap(void* address, size_t length) noexcept {
  release(address, length);
  return next_munmap(address, length);
}

VERBENA_REPLACE(madvise) int verbena_madvise(void* address, size_t length, int advice) noexcept {
  constexpr int kDontNeedLocked = 24;  // MADV_DONTNEED_LOCKED of newer headers
  const int result = next_madvise(address, length, advice);
  if (advice == MADV_DONTNEED || advice == kDontNeedLocked) {
    // The kernel refuses pages that are locked; where some are not mapped, it empties the others.
    const int error = errno;
    if (result == 0 || error == ENOMEM) release(address, length);
    errno = error;
    return result;
  }
  if (result == 0 || advice != MADV_FREE || errno != EINVAL) return result;
  // The kernel frees private pages only. It may do so at any time, so at once is right too.
  if (peers_share(address, length) && release(address, length)) return 0;
  errno = EINVAL;
  return result;
}

VERBENA_REPLACE(mmap)
void* verbena_mmap(void* address, size_t length, int protection, int flags, int fd,
                   off_t offset) noexcept {
  return map(address, length, protection, flags, fd, offset);
}

VERBENA_REPLACE(mmap64)
void* verbena_mmap64(void* address, size_t length, int protection, int flags, int fd,
                     off64_t offset) noexcept {
  return map(address, length, protection, flags, fd, offset);
}
