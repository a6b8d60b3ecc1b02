// The ends of registrations: pages become private memory again, out of every peer's reach.
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "src/base/log.h"
#include "src/device/soft/pages/page_share_internal.h"
#include "src/device/soft/pages/raw_syscall.h"
#include "src/device/soft/pages/thread_census.h"

#ifndef MLOCK_ONFAULT
#define MLOCK_ONFAULT 1
#endif

namespace verbena::soft {

void PageShare::release(void* address, uint64_t length_bytes, Sharing sharing) {
  if (length_bytes == 0) return;
  const bool all_seen = all_discards_seen();
  const std::lock_guard lock(mutex_);
  give_back_kept();
  if (sharing == Sharing::kShared) return unregister(whole_pages(address, length_bytes), all_seen);
  const auto found =
      held_private_.find(Range(as_number(address), as_number(address) + length_bytes));
  if (found == held_private_.end()) return;
  const std::vector<Range> shared = std::move(found->second);
  held_private_.erase(found);
  for (const Range& part : shared) unregister(part, all_seen);
}

void PageShare::unregister(Range range, bool all_discards_seen) {
  registrations_.remove(range);
  for (const Range& part : registrations_.parts(range, 0)) {
    const std::string reason = make_unregistered(part, nullptr);
    if (reason.empty() || all_discards_seen) continue;
    const std::string not_locked = lock_shared(part);
    if (not_locked.empty()) continue;
    log_error(
        "soft0: memory {} is no longer registered, but MADV_DONTNEED will not zero it: {}; and {}",
        describe(part.first, part.second), reason, not_locked);
  }
}

Status PageShare::cut_off(void* address, uint64_t length_bytes, Sharing sharing,
                          const StandingPeers& standing) {
  if (length_bytes == 0) return {};
  const std::lock_guard lock(mutex_);
  const auto refuse = [&](const std::string& reason) {
    return Status(StatusCode::kUnavailable, reason);
  };
  if (sharing == Sharing::kPrivate) return refuse("peers reach it through the kernel");
  const Range range = whole_pages(address, length_bytes);
  if (registrations_.parts(range, 1) != std::vector{range}) {
    return refuse("another registration covers some of its pages");
  }
  const std::string reason = make_unregistered(range, &standing);
  if (!reason.empty()) return refuse(reason);
  registrations_.remove(range);
  return {};
}

void PageShare::check_standing_peers() {
  const std::lock_guard lock(mutex_);
  give_back_kept();
}

// The mappings of the file that belong to `range`: there, or wherever mremap() took them.
std::vector<PageShare::Piece> PageShare::find_shared(Range range) const {
  // Undoes the advice of share_piece(), so that what lies side by side is one mapping.
  raw_syscall(SYS_madvise, static_cast<long>(range.first),
              static_cast<long>(range.second - range.first), MADV_NORMAL);
  std::vector<Piece> pieces;
  uint64_t found_bytes = 0;
  VmaQuery::Scan scan(query_, range.first, range.second);
  for (Vma vma; scan.next(&vma);) {
    if (!is_in_place(vma)) continue;
    pieces.push_back({{std::max(range.first, vma.start), std::min(range.second, vma.end)}, vma});
    found_bytes += pieces.back().range.second - pieces.back().range.first;
  }
  // None is mapped elsewhere where none had pages. A registration that failed asks, of many maybe.
  if (found_bytes == range.second - range.first || !used(range)) return pieces;
  VmaQuery::Scan all(query_, 0, kSpanBytes, VmaQuery::Detail::kPlace, VmaQuery::Which::kFileBacked);
  for (Vma vma; all.next(&vma);) {
    if (!is_own(vma) || is_in_place(vma)) continue;
    const uint64_t begin = std::max(range.first, vma.offset_bytes);
    const uint64_t end = std::min(range.second, vma.offset_bytes + (vma.end - vma.start));
    if (begin >= end) continue;
    const uint64_t address = vma.start + (begin - vma.offset_bytes);
    pieces.push_back({{address, address + (end - begin)}, vma});
  }
  return pieces;
}

// The reason why not; empty if it is done. Where the kernel runs out of something half way, a part
// is private already.
std::string PageShare::make_unregistered(Range range, const StandingPeers* standing) {
  const std::vector<Piece> pieces = find_shared(range);
  if (!pieces.empty()) {
    const std::vector<ThreadPlace> threads = threads_of_process();
    for (const Piece& piece : pieces) {
      std::string reason = why_not_movable(piece, threads);
      if (!reason.empty()) return reason;
    }
  }
  // From the first page that moves on. Not emptied, either: they may also be reading.
  if (standing != nullptr) kept_.push_back({range, *standing});
  for (const Piece& piece : pieces) {
    std::string reason = make_private(piece, nullptr);
    if (!reason.empty()) return reason;
  }
  mark_unused(range);
  if (standing == nullptr) punch(range);
  return {};
}

std::string PageShare::lock_shared(Range range) const {
  VmaQuery::Scan scan(query_, range.first, range.second);
  for (Vma vma; scan.next(&vma);) {
    const uint64_t begin = std::max(range.first, vma.start);
    const uint64_t end = std::min(range.second, vma.end);
    if (!is_own(vma)) continue;
    const long result = raw_syscall(SYS_mlock2, static_cast<long>(begin),
                                    static_cast<long>(end - begin), MLOCK_ONFAULT);
    if (!is_error(result)) continue;
    return fmt::format(
        "it cannot be locked against MADV_DONTNEED (mlock2 of {} bytes): {}; raise ulimit -l{}",
        end - begin, strerror(static_cast<int>(-result)),
        writers_ == Writers::kNone ? ", or allow sysctl vm.unprivileged_userfaultfd=1" : "");
  }
  return {};
}

void PageShare::give_back_kept() {
  bool some = false;
  std::erase_if(kept_, [&](const Kept& kept) {
    if (!kept.standing.gone_on()) return false;
    mark_used(kept.range);
    some = true;
    return true;
  });
  if (some) collect_unmapped();
}

std::string PageShare::why_kept(Range range) {
  give_back_kept();
  for (const Kept& kept : kept_) {
    if (kept.range.first < range.second && range.first < kept.range.second) {
      return fmt::format(
          "{} is stopped in the middle of an access to memory that was at this address before; "
          "continue or end it",
          kept.standing.who);
    }
  }
  return {};
}

}  // namespace verbena::soft
