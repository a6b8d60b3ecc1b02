#include "src/device/soft/pages/page_move.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "src/device/soft/pages/raw_syscall.h"

// Everything here runs while pages are in flight: see raw_syscall.h for what that forbids. That is
// why there is no standard library here, not even memcpy.

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace verbena::soft {
namespace {

constexpr uint64_t kPresent = 1ull << 63;
constexpr uint64_t kSwapped = 1ull << 62;

VERBENA_IN_FLIGHT bool fail_move(PageMove& move, long result, const char* call) {
  move.error = static_cast<int>(-result);
  move.failed_call = call;
  return false;
}

VERBENA_IN_FLIGHT size_t page_count(const PageMove& move) {
  return move.length_bytes / move.page_bytes;
}

// Stores what differs, byte by byte: a peer may be writing to the rest of the page.
VERBENA_IN_FLIGHT void merge_page(std::byte* to, const std::byte* from, const std::byte* base,
                                  uint64_t bytes) {
  for (uint64_t word = 0; word < bytes; word += 8) {
    if (*reinterpret_cast<const uint64_t*>(from + word) ==
        *reinterpret_cast<const uint64_t*>(base + word)) {
      continue;
    }
    for (uint64_t i = word; i < word + 8; ++i) {
      if (from[i] == base[i]) continue;
      __atomic_store_n(reinterpret_cast<uint8_t*>(to + i), static_cast<uint8_t>(from[i]),
                       __ATOMIC_RELAXED);
    }
  }
}

// The barrier keeps the compiler from making this a call of memset.
VERBENA_IN_FLIGHT void mark_all(uint8_t* marks, size_t count, uint8_t mark) {
  for (size_t page = 0; page < count; ++page) {
    marks[page] = mark;
    asm volatile("" : : : "memory");
  }
}

// As far as the page table tells: a page of a file may exist without being there.
VERBENA_IN_FLIGHT bool find_mapped(PageMove& move, const std::byte* pages) {
  const size_t count = page_count(move);
  const size_t bytes = count * sizeof(uint64_t);
  const auto position = reinterpret_cast<uintptr_t>(pages) / move.page_bytes * sizeof(uint64_t);
  size_t have = 0;
  while (have < bytes) {
    const long result =
        raw_syscall(SYS_pread64, move.pagemap, as_argument(move.pagemap_entries) + (long)have,
                    static_cast<long>(bytes - have), static_cast<long>(position + have));
    if (result == -EINTR) continue;
    if (is_error(result) || result == 0) {
      return fail_move(move, is_error(result) ? result : -EIO, "read(/proc/self/pagemap)");
    }
    have += static_cast<size_t>(result);
  }
  for (size_t page = 0; page < count; ++page) {
    move.touched[page] = (move.pagemap_entries[page] & (kPresent | kSwapped)) != 0;
  }
  return true;
}

// Not by SEEK_HOLE: that looks through all that follows in the file, for each move.
VERBENA_IN_FLIGHT bool find_touched_in_file(PageMove& move, const std::byte* pages) {
  const size_t count = page_count(move);
  mark_all(move.touched, count, 0);
  if (move.pagemap >= 0 && !find_mapped(move, pages)) return false;
  for (size_t page = 0; page < count;) {
    if (move.touched[page]) {
      ++page;
      continue;
    }
    const uint64_t offset = move.file_offset + page * move.page_bytes;
    const long data = raw_syscall(SYS_lseek, move.file, static_cast<long>(offset), SEEK_DATA);
    if (data == -ENXIO) return true;
    if (is_error(data)) return fail_move(move, data, "lseek(SEEK_DATA)");
    if (static_cast<uint64_t>(data) == offset) move.touched[page] = 1;
    const size_t next = (static_cast<uint64_t>(data) - move.file_offset) / move.page_bytes;
    page = next > page ? next : page + 1;
  }
  return true;
}

VERBENA_IN_FLIGHT bool find_touched(PageMove& move, const std::byte* pages) {
  if (move.contents == PageMove::Contents::kFile) return find_touched_in_file(move, pages);
  if (move.contents == PageMove::Contents::kAnonymous && move.pagemap >= 0) {
    return find_mapped(move, pages);
  }
  mark_all(move.touched, page_count(move), 1);
  return true;
}

VERBENA_IN_FLIGHT void ask_for_huge_pages(const PageMove& move) {
  if (!move.huge_if_dense) return;
  for (size_t page = 0; page < page_count(move); ++page) {
    if (!move.touched[page]) return;
  }
  raw_syscall(SYS_madvise, as_argument(move.staging), static_cast<long>(move.length_bytes),
              MADV_HUGEPAGE);
}

// Makes the new pages that will be needed exist. Running out of memory is an error here, where a
// store to the page would be a signal.
VERBENA_IN_FLIGHT bool prepare_staging(PageMove& move) {
  const size_t count = page_count(move);
  for (size_t page = 0; page < count;) {
    if (!move.touched[page] || move.ready[page]) {
      ++page;
      continue;
    }
    size_t end = page;
    while (end < count && move.touched[end] && !move.ready[end]) ++end;
    mark_all(move.ready + page, end - page, 1);
    const long result =
        raw_syscall(SYS_madvise, as_argument(move.staging + page * move.page_bytes),
                    static_cast<long>((end - page) * move.page_bytes), MADV_POPULATE_WRITE);
    if (is_error(result)) return fail_move(move, result, "madvise(MADV_POPULATE_WRITE)");
    page = end;
  }
  return true;
}

VERBENA_IN_FLIGHT void fill_staging(PageMove& move, const std::byte* pages) {
  for (size_t page = 0; page < page_count(move); ++page) {
    if (!move.touched[page]) continue;
    const uint64_t at = page * move.page_bytes;
    if (move.fill == PageMove::Fill::kMerge) {
      merge_page(move.staging + at, pages + at, move.snapshot + at, move.page_bytes);
      continue;
    }
    copy_in_flight(move.staging + at, pages + at, move.page_bytes);
    // From the copy: the second one must be equal to the first, whatever a peer writes meanwhile.
    if (move.snapshot != nullptr) {
      copy_in_flight(move.snapshot + at, move.staging + at, move.page_bytes);
    }
  }
}

VERBENA_IN_FLIGHT long remap_pages(PageMove& move, std::byte* from, std::byte* to, long flags) {
  return remap_in_flight(from, to, move.length_bytes, flags, move.spare);
}

VERBENA_IN_FLIGHT bool put_in_place(PageMove& move) {
  if (move.protection != (PROT_READ | PROT_WRITE)) {
    const long result = raw_syscall(SYS_mprotect, as_argument(move.staging),
                                    static_cast<long>(move.length_bytes), move.protection);
    if (is_error(result)) return fail_move(move, result, "mprotect");
  }
  const long result = remap_pages(move, move.staging, move.address, 0);
  if (is_error(result)) return fail_move(move, result, "mremap");
  move.staging_gone = true;
  return true;
}

VERBENA_IN_FLIGHT void on_range(const PageMove& move, unsigned long request) {
  uffdio_range range;
  range.start = reinterpret_cast<uintptr_t>(move.address);
  range.len = move.length_bytes;
  raw_syscall(SYS_ioctl, move.userfaultfd, static_cast<long>(request), as_argument(&range));
}

// From here to the end every other thread that touches the pages waits.
VERBENA_IN_FLIGHT bool fly(PageMove& move) {
  uffdio_register request;
  request.range.start = reinterpret_cast<uintptr_t>(move.address);
  request.range.len = move.length_bytes;
  request.mode = UFFDIO_REGISTER_MODE_MISSING | (move.file_backed ? UFFDIO_REGISTER_MODE_MINOR : 0);
  request.ioctls = 0;
  long result = raw_syscall(SYS_ioctl, move.userfaultfd, static_cast<long>(UFFDIO_REGISTER),
                            as_argument(&request));
  if (is_error(result)) return fail_move(move, result, "ioctl(UFFDIO_REGISTER)");

  result = remap_pages(move, move.address, move.aside, MREMAP_DONTUNMAP);
  if (is_error(result)) {
    on_range(move, UFFDIO_UNREGISTER);
    return fail_move(move, result, "mremap(MREMAP_DONTUNMAP)");
  }
  // Threads may have touched more pages since the first check.
  bool done = find_touched(move, move.aside) && prepare_staging(move);
  if (done) {
    fill_staging(move, move.aside);
    done = put_in_place(move);
  }
  if (!done) {
    move.lost = is_error(remap_pages(move, move.aside, move.address, 0));
    move.aside_gone = !move.lost;
  }
  on_range(move, UFFDIO_WAKE);
  return done;
}

}  // namespace

VERBENA_IN_FLIGHT long remap_in_flight(std::byte* from, std::byte* to, uint64_t length_bytes,
                                       long flags, SpareMappings* spare) {
  const auto length = static_cast<long>(length_bytes);
  for (;;) {
    const long result = raw_syscall(SYS_mremap, as_argument(from), length, length,
                                    MREMAP_MAYMOVE | MREMAP_FIXED | flags, as_argument(to));
    // MREMAP_DONTUNMAP starts the flight: then nothing is lost yet.
    if (result != -ENOMEM || (flags & MREMAP_DONTUNMAP) != 0 || spare->used) return result;
    spare->used = true;
    raw_syscall(SYS_munmap, as_argument(spare->address), static_cast<long>(spare->length_bytes));
  }
}

VERBENA_IN_FLIGHT void copy_in_flight(std::byte* to, const std::byte* from, uint64_t bytes) {
#if defined(__x86_64__)
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
#else
  auto* out = reinterpret_cast<uint64_t*>(to);
  auto* in = reinterpret_cast<const uint64_t*>(from);
  for (uint64_t word = 0; word < bytes / 8; ++word) {
    out[word] = in[word];
    // Or the compiler would turn the loop into a call of memcpy.
    asm volatile("" : : : "memory");
  }
#endif
}

VERBENA_IN_FLIGHT void move_pages(void* page_move) {
  PageMove& move = *static_cast<PageMove*>(page_move);
  mark_all(move.ready, page_count(move), 0);
  // Most of the work is done beforehand, so that pages are in flight for a copy's time only.
  if (!find_touched(move, move.address)) return;
  ask_for_huge_pages(move);
  if (!prepare_staging(move)) return;
  if (move.userfaultfd >= 0) {
    fly(move);
  } else {
    fill_staging(move, move.address);
    put_in_place(move);
  }
}

}  // namespace verbena::soft
