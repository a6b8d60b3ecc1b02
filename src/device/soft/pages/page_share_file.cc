// The memory file as a resource: which of its pages are in use, and memory made in it anew.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "src/base/assert.h"
#include "src/device/soft/pages/page_share_internal.h"
#include "src/device/soft/pages/raw_syscall.h"
#include "src/device/soft/pages/thread_census.h"

namespace verbena::soft {

bool PageShare::used(Range range) const {
  const auto next = used_.lower_bound(range.second);
  return next != used_.begin() && std::prev(next)->second > range.first;
}

void PageShare::mark_used(Range range) {
  auto at = used_.upper_bound(range.first);
  if (at != used_.begin() && std::prev(at)->second >= range.first) --at;
  while (at != used_.end() && at->first <= range.second) {
    range.first = std::min(range.first, at->first);
    range.second = std::max(range.second, at->second);
    at = used_.erase(at);
  }
  used_.emplace(range.first, range.second);
}

void PageShare::mark_unused(Range range) {
  auto at = used_.lower_bound(range.first);
  if (at != used_.begin() && std::prev(at)->second > range.first) --at;
  while (at != used_.end() && at->first < range.second) {
    const auto [begin, end] = *at;
    at = used_.erase(at);
    if (begin < range.first) used_.emplace(begin, range.first);
    if (end > range.second) used_.emplace(range.second, end);
  }
}

void PageShare::punch(Range range) const {
  const long result =
      raw_syscall(SYS_fallocate, file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  static_cast<long>(range.first), static_cast<long>(range.second - range.first));
  VERBENA_ASSERT(!is_error(result));
}

// Offsets that had pages before may still be in use at other addresses, where mremap() moved them,
// or hold what was there before it was unmapped.
std::string PageShare::claim(Range range) {
  std::string kept = why_kept(range);
  if (!kept.empty() || !used(range)) return kept;
  std::vector<Piece> moved;
  VmaQuery::Scan scan(query_, 0, kSpanBytes, VmaQuery::Detail::kPlace,
                      VmaQuery::Which::kFileBacked);
  for (Vma vma; scan.next(&vma);) {
    const uint64_t offset_end = vma.offset_bytes + (vma.end - vma.start);
    if (is_own(vma) && !is_in_place(vma) && vma.offset_bytes < range.second &&
        range.first < offset_end) {
      moved.push_back({{vma.start, vma.end}, vma});
    }
  }
  if (!moved.empty() && writers_ == Writers::kNone && other_threads_run(threads_of_process())) {
    return "its place in the memory file is taken by memory that mremap() moved away, and other "
           "threads run; allow userfaultfd (sysctl vm.unprivileged_userfaultfd=1)";
  }
  for (const Piece& piece : moved) {
    std::string reason = make_private(piece, nullptr);
    if (!reason.empty()) return reason;
  }
  punch(range);
  return {};
}

// Gives back the memory of what the application unmapped without telling.
void PageShare::collect_unmapped() {
  shared_since_collection_bytes_ = 0;
  std::vector<Range> mapped;
  VmaQuery::Scan scan(query_, 0, kSpanBytes, VmaQuery::Detail::kPlace,
                      VmaQuery::Which::kFileBacked);
  for (Vma vma; scan.next(&vma);) {
    if (is_own(vma)) {
      mapped.emplace_back(vma.offset_bytes, vma.offset_bytes + (vma.end - vma.start));
    }
  }
  std::sort(mapped.begin(), mapped.end());
  std::map<uint64_t, uint64_t> before;
  before.swap(used_);
  auto next = mapped.begin();
  for (const auto& [begin, end] : before) {
    uint64_t at = begin;
    // Mappings end in the order in which they begin, unless the application doubled one.
    while (next != mapped.end() && next->second <= at) ++next;
    for (auto in = next; in != mapped.end() && in->first < end && at < end; ++in) {
      if (in->second <= at) continue;
      if (at < in->first) punch(Range(at, in->first));
      at = std::max(at, in->first);
      const uint64_t in_end = std::min(end, in->second);
      mark_used(Range(at, in_end));
      at = in_end;
    }
    if (at < end) punch(Range(at, end));
  }
}

void PageShare::forget(void* address, uint64_t length_bytes) {
  const Range range = whole_pages(address, length_bytes);
  if (range.second <= range.first) return;
  // Another thread may hold the lock and wait for the allocator that calls this. Without the lock
  // the kernel is asked, which takes longer.
  if (mutex_.try_lock()) {
    const bool possible = used(range);
    mutex_.unlock();
    if (!possible) return;
  }
  VmaQuery::Scan scan(query_, range.first, range.second, VmaQuery::Detail::kPlace,
                      VmaQuery::Which::kFileBacked);
  for (Vma vma; scan.next(&vma);) {
    if (!is_own(vma)) continue;
    const uint64_t begin = std::max(range.first, vma.start) - vma.start + vma.offset_bytes;
    const uint64_t end = std::min(range.second, vma.end) - vma.start + vma.offset_bytes;
    punch(Range(begin, end));
  }
}

bool PageShare::shares_any(const void* address, uint64_t length_bytes) const {
  const Range range = whole_pages(address, length_bytes);
  VmaQuery::Scan scan(query_, range.first, range.second, VmaQuery::Detail::kPlace,
                      VmaQuery::Which::kFileBacked);
  for (Vma vma; scan.next(&vma);) {
    if (is_own(vma)) return true;
  }
  return false;
}

int PageShare::protection_of(const void* address, uint64_t length_bytes) const {
  uint64_t at = as_number(address);
  const uint64_t end = at + length_bytes;
  int protection = -1;
  VmaQuery::Scan scan(query_, at, end);
  for (Vma vma; at < end && scan.next(&vma); at = vma.end) {
    const bool of_one = is_own(vma) || (!vma.shared && vma.inode == 0);
    if (vma.start > at || !of_one || (protection >= 0 && vma.protection() != protection)) return -1;
    protection = vma.protection();
  }
  return at < end ? -1 : protection;
}

Result<void*> PageShare::map_new(uint64_t length_bytes) {
  if (length_bytes == 0 || length_bytes > kSpanBytes / 2) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("cannot map {} bytes of shared memory; between 1 and {} are possible",
                              length_bytes, kSpanBytes / 2));
  }
  const uint64_t bytes = (length_bytes + page_bytes_ - 1) & ~(page_bytes_ - 1);
  const uint64_t slack = bytes >= kHugePageBytes ? kHugePageBytes : 0;
  const std::lock_guard lock(mutex_);
  uint64_t base;
  // Addresses whose offsets are kept from use stay taken until others are found.
  std::vector<uint64_t> avoided;
  do {
    base = as_number(
        raw_map(0, bytes + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    avoided.push_back(base);
  } while (base != 0 && !why_kept(Range(base, base + bytes + slack)).empty());
  avoided.pop_back();
  for (const uint64_t address : avoided) raw_unmap(address, bytes + slack);
  const auto failed = [&](const std::string& reason) {
    if (base != 0) raw_unmap(base, bytes + slack);
    return Status(StatusCode::kLimitExceeded,
                  fmt::format("cannot map {} bytes of shared memory: {}", bytes, reason));
  };
  if (base == 0) return failed(explain_failure(errno, "mmap"));
  const uint64_t begin = slack == 0 ? base : (base + slack - 1) & ~(slack - 1);
  const std::string reason = claim(Range(begin, begin + bytes));
  if (!reason.empty()) return failed(reason);
  std::byte* memory =
      raw_map(begin, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_.get(), begin);
  if (memory == nullptr || is_error(raw_syscall(SYS_madvise, as_argument(memory),
                                                static_cast<long>(bytes), MADV_DONTFORK))) {
    return failed(explain_failure(errno, "mmap"));
  }
  if (slack != 0 && huge_pages_) {
    raw_syscall(SYS_madvise, as_argument(memory), static_cast<long>(bytes), MADV_HUGEPAGE);
  }
  raw_unmap(base, begin - base);
  raw_unmap(begin + bytes, base + slack - begin);
  mark_used(Range(begin, begin + bytes));
  new_mappings_.emplace(begin, begin + bytes);
  registrations_.add(Range(begin, begin + bytes));
  return memory;
}

void PageShare::unmap_new(void* address, uint64_t length_bytes) {
  if (address == nullptr) return;
  const uint64_t begin = as_number(address);
  const uint64_t end = (begin + length_bytes + page_bytes_ - 1) & ~(page_bytes_ - 1);
  const std::lock_guard lock(mutex_);
  const auto found = new_mappings_.find(begin);
  VERBENA_ASSERT(found != new_mappings_.end() && found->second == end);
  new_mappings_.erase(found);
  registrations_.remove(Range(begin, end));
  // In this order: afterwards the addresses may belong to somebody else.
  punch(Range(begin, end));
  raw_unmap(begin, end - begin);
}

}  // namespace verbena::soft
