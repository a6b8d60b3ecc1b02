// Replaces pages of this process by other pages with the same contents, while other threads use
// them.
//
// The pages are in flight while it happens: userfaultfd holds every thread that touches them,
// mremap(MREMAP_DONTUNMAP) puts the old pages aside, their contents are copied to the new ones,
// the new ones take the place of the old, and the threads go on. A plain copy would lose what they
// write meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/device/soft/pages/raw_syscall.h"

namespace verbena::soft {

// At most this many bytes are in flight at a time (1 ms or less), and as many are needed twice.
inline constexpr uint64_t kMaxMoveBytes = 4u << 20;
inline constexpr size_t kMaxMovePages = kMaxMoveBytes / 4096;

// Mappings to give up when the process runs into vm.max_map_count half way.
struct SpareMappings {
  std::byte* address;
  uint64_t length_bytes;
  bool used;
};

// One move, and the memory it may use. Lies in memory of its own, never in a page that moves.
struct PageMove {
  enum class Contents : uint8_t {
    kAnonymous,  // what was never touched reads as zero and is not copied
    kFile,       // as `file` has data at `file_offset` and after
    kAll,
  };
  enum class Fill : uint8_t {
    kCopy,   // the new pages get the contents of the old
    kMerge,  // the new pages get those bytes of the old that differ from `snapshot`
  };

  // What to move, whole pages, and the protection it has and keeps.
  std::byte* address;
  uint64_t length_bytes;
  uint64_t page_bytes;
  int protection;
  Contents contents;
  Fill fill;
  // The kernel holds faults on pages that a shared file has, too ("minor" faults).
  bool file_backed;
  // -1: no other thread can write to the pages; they are copied in place and then replaced.
  int userfaultfd;
  // /proc/self/pagemap; -1: all anonymous pages count as touched.
  int pagemap;
  int file;
  uint64_t file_offset;
  // The new pages: mapped and writable.
  std::byte* staging;
  // Use huge pages for the new ones if every old one was touched.
  bool huge_if_dense;
  // Mapped address space of the same length, where the old pages end.
  std::byte* aside;
  // kCopy: receives a second copy if not null. kMerge: what to compare with.
  std::byte* snapshot;
  SpareMappings* spare;

  // The outcome: 0, or an errno value and the call that failed. The old pages are then in place
  // again, with their contents, unless `lost` (which only an inconsistent kernel could cause).
  int error;
  const char* failed_call;
  bool lost;
  // What is no longer mapped after the move. Other threads may already use those addresses.
  bool staging_gone;
  bool aside_gone;

  uint8_t ready[kMaxMovePages];    // the new page exists already
  uint8_t touched[kMaxMovePages];  // the old page has contents
  uint64_t pagemap_entries[kMaxMovePages];
};

// mremap() to a fixed address. Gives up the spare mappings if the process has too many.
VERBENA_IN_FLIGHT long remap_in_flight(std::byte* from, std::byte* to, uint64_t length_bytes,
                                       long flags, SpareMappings* spare);
// memcpy() for code that must not call it: whole words.
VERBENA_IN_FLIGHT void copy_in_flight(std::byte* to, const std::byte* from, uint64_t bytes);

// The body of a move, for call_on_stack(): the calling thread's own stack may be among the pages.
// All signals must be blocked: a handler could touch the pages, and would then wait for itself.
VERBENA_IN_FLIGHT void move_pages(void* page_move);

}  // namespace verbena::soft
