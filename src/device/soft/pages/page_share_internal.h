// What the parts of PageShare share: raw mappings, address space for moves, the workspace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/device/soft/pages/page_detach.h"
#include "src/device/soft/pages/page_move.h"
#include "src/device/soft/pages/page_share.h"

namespace verbena::soft {

// The processor's address space for a process, and thus the length of the memory file.
#if defined(__x86_64__)
inline constexpr uint64_t kSpanBytes = 1ull << 47;
#else
inline constexpr uint64_t kSpanBytes = 1ull << 48;
#endif

inline constexpr uint64_t kHugePageBytes = 2u << 20;

inline uint64_t as_number(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }
inline std::byte* as_pointer(uint64_t address) { return reinterpret_cast<std::byte*>(address); }

// mmap() and munmap() that no hook of the program sees. Null with errno on failure.
std::byte* raw_map(uint64_t address, uint64_t length_bytes, int protection, int flags, int fd,
                   uint64_t offset_bytes);
void raw_unmap(uint64_t address, uint64_t length_bytes);

// "[begin, end)" for messages.
std::string describe(uint64_t begin, uint64_t end);

// One line on why a call failed: cause, limit and remedy.
std::string explain_failure(int error, std::string_view call);

// Address space for the new pages of a move and for the old ones. Both lie to the boundaries of
// huge pages as the moved pages do, so that page tables can move as a whole.
class Reservation {
 public:
  Reservation(uint64_t address, uint64_t length_bytes);
  ~Reservation();
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

  bool valid() const { return base_ != 0; }
  uint64_t staging() const { return staging_; }
  uint64_t aside() const { return staging_ + length_bytes_; }
  // What is no longer mapped: another thread may have got those addresses since.
  void give_up_staging() { staging_gone_ = true; }
  void give_up_aside() { aside_gone_ = true; }

 private:
  uint64_t base_ = 0;
  uint64_t bytes_ = 0;
  uint64_t staging_ = 0;
  uint64_t length_bytes_;
  bool staging_gone_ = false;
  bool aside_gone_ = false;
};

// What moving pages needs: memory of its own, so that it is never among those pages.
struct PageShare::Workspace {
  alignas(4096) std::byte guard[65536];  // room for a whole page of any size
  std::byte stack[65536];
  PageMove move;
  PageDetach detach;
  SpareMappings spare;
};

// Between the handlers before and after a fork.
struct PageShare::Fork {
  struct StackPiece {
    Piece piece;
    std::byte* snapshot;
  };
  std::vector<StackPiece> stack;
  std::vector<Range> withheld;  // from the child, for want of anything better
  std::vector<Vma> mappings;    // what the child copies
  uint64_t copied_bytes = 0;
  FileDescriptor done_read;  // the child is done when it writes, or is no more
  FileDescriptor done_write;
  // Only in a child: what its parent knew.
  std::map<uint64_t, uint64_t> used;
  std::map<uint64_t, uint64_t> new_mappings;
  std::multimap<Range, std::vector<Range>> held_private;
  PageCounts registrations;
  std::vector<Kept> kept;
  std::vector<pid_t> exempt_threads;
};

}  // namespace verbena::soft
