// Which memory can be shared, and why the rest cannot.
#include <fmt/format.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "src/device/soft/pages/page_share_internal.h"
#include "src/device/soft/pages/thread_census.h"

namespace verbena::soft {

std::string PageShare::pieces_to_move(Range range, std::vector<Piece>* pieces) const {
  const std::vector<ThreadPlace> threads = threads_of_process();
  VmaQuery::Scan scan(query_, range.first, range.second, VmaQuery::Detail::kNamed);
  for (Vma vma; scan.next(&vma);) {
    if (is_in_place(vma)) continue;
    Piece piece{{std::max(range.first, vma.start), std::min(range.second, vma.end)}, vma};
    std::string reason = why_not_movable(piece, threads);
    if (!reason.empty()) return reason;
    pieces->push_back(piece);
  }
  // Peers write to these through the kernel, which may hold on to the old pages.
  for (const auto& [held, count] : held_private_) {
    for (const Piece& piece : *pieces) {
      if (held.first < piece.range.second && piece.range.first < held.second) {
        return fmt::format(
            "peers reach an earlier registration, {}, through the kernel, and it still exists",
            describe(held.first, held.second));
      }
    }
  }
  return {};
}

bool PageShare::other_threads_run(const std::vector<ThreadPlace>& threads) const {
  if (quiet_ && writers_ == Writers::kNone) return false;
  const pid_t self = this_thread();
  return threads.empty() ||
         std::any_of(threads.begin(), threads.end(), [&](const ThreadPlace& thread) {
           return thread.id != self && std::find(exempt_threads_.begin(), exempt_threads_.end(),
                                                 thread.id) == exempt_threads_.end();
         });
}

std::string PageShare::why_not_movable(const Piece& piece,
                                       const std::vector<ThreadPlace>& threads) const {
  const Vma& vma = piece.vma;
  const auto [begin, end] = piece.range;
  const std::string place = describe(begin, end);
  const bool own = is_own(vma);
  if (end > kSpanBytes) {
    return fmt::format("it lies above {:#x}, the end of the memory file", kSpanBytes);
  }
  if (!vma.readable) {
    return fmt::format("{} cannot be read; allow it with mprotect()", place);
  }
  if (vma.executable) {
    return fmt::format("{} is executable code {}; register data", place, vma.name);
  }
  if (vma.shared && !own) {
    return fmt::format(
        "{} is a shared mapping of the application ({}); register memory from malloc() "
        "or a private mmap() for direct access",
        place, vma.name);
  }
  if (vma.page_bytes > page_bytes_ || vma.named("/anon_hugepage")) {
    return fmt::format(
        "{} consists of huge pages (hugetlb); use transparent huge pages, "
        "madvise(MADV_HUGEPAGE), for direct access",
        place);
  }
  if ((vma.name[0] == '[' && !vma.named("[heap]") && !vma.named("[stack]") &&
       !vma.named("[anon:")) ||
      (vma.named("/dev/") && !vma.named("/dev/zero")) || vma.named("anon_inode:")) {
    return fmt::format("{} belongs to the kernel or a device ({})", begin, end, vma.name);
  }
  const uint64_t work = as_number(workspace_);
  if (begin < work + sizeof(Workspace) && work < end) {
    return "it contains memory that the sharing of pages itself needs";
  }
  // A stack grows by faults below its lowest page, and a shared page does not grow.
  const uint64_t frame = as_number(__builtin_frame_address(0));
  const bool stack =
      vma.named("[stack]") || (this_thread() == getpid() && vma.start <= frame && frame < vma.end);
  Vma below;
  if (stack && begin == vma.start && !VmaQuery::Scan(query_, begin - 1, begin).next(&below)) {
    return "it contains the lowest page of a stack that can still grow";
  }
  return why_not_beside_threads(piece, threads);
}

std::string PageShare::why_not_beside_threads(const Piece& piece,
                                              const std::vector<ThreadPlace>& threads) const {
  const Vma& vma = piece.vma;
  const auto [begin, end] = piece.range;
  const std::string place = describe(begin, end);
  const pid_t self = this_thread();
  const pid_t process = getpid();
  rlimit stack{};
  getrlimit(RLIMIT_STACK, &stack);
  const uint64_t stack_bytes = std::min<uint64_t>(stack.rlim_cur, 64u << 20);
  for (const ThreadPlace& thread : threads) {
    const uint64_t block = thread.control_begin;
    if (block == 0) continue;
    if (begin < thread.control_end && block < end) {
      return fmt::format(
          "{} contains the page with what the C library keeps about thread {}; use "
          "memory from malloc() for direct access",
          place, thread.id);
    }
    // The kernel writes signal frames to stacks; a fault that it cannot wait for kills the process.
    const bool in_stack = thread.id != process && vma.start <= block && block < vma.end &&
                          begin < block && end > block - std::min(block, stack_bytes);
    if (writers_ == Writers::kHeldInUser && thread.id != self && in_stack) {
      return fmt::format(
          "{} is in the stack of the running thread {}; let that thread register it, "
          "or allow sysctl vm.unprivileged_userfaultfd=1",
          place, thread.id);
    }
  }
  if (writers_ == Writers::kHeldInUser && is_own(vma) &&
      in_stack_of_another_thread(piece, threads)) {
    return "it is in the stack of another thread, which only that thread can give back; or allow "
           "sysctl vm.unprivileged_userfaultfd=1";
  }
  if (writers_ == Writers::kHeldInUser && self != process && vma.named("[stack]")) {
    return "it is in the stack of the main thread; let that thread register it, or allow sysctl "
           "vm.unprivileged_userfaultfd=1";
  }
  if (!other_threads_run(threads)) return {};
  if (writers_ == Writers::kNone && vma.writable) {
    return "other threads run, and userfaultfd, which holds them while pages move, is not allowed; "
           "allow it with sysctl vm.unprivileged_userfaultfd=1, or in a container by its seccomp "
           "profile, or register before starting threads, or, where no other thread writes to it "
           "meanwhile, set VERBENA_QUIET_REGISTRATION=1";
  }
  return {};
}

// Of pages that are shared, the mapping does not tell that they are part of a stack: then writable
// memory without a gap leads from them up to the main thread's stack or a thread's control block.
bool PageShare::in_stack_of_another_thread(const Piece& piece,
                                           const std::vector<ThreadPlace>& threads) const {
  const pid_t self = this_thread();
  const bool beside_main = self != getpid();
  rlimit stack{};
  getrlimit(RLIMIT_STACK, &stack);
  const uint64_t stack_bytes = std::min<uint64_t>(stack.rlim_cur, 64u << 20);
  const uint64_t limit = std::min(piece.range.first + stack_bytes, kSpanBytes);
  uint64_t end = piece.range.first;
  VmaQuery::Scan scan(query_, end, limit, VmaQuery::Detail::kNamed);
  for (Vma vma; scan.next(&vma) && vma.start <= end && vma.writable; end = vma.end) {
    if (beside_main && vma.named("[stack]")) return true;
  }
  return std::any_of(threads.begin(), threads.end(), [&](const ThreadPlace& thread) {
    return thread.id != self && piece.range.first < thread.control_begin &&
           thread.control_begin < std::min(end, limit);
  });
}

}  // namespace verbena::soft
