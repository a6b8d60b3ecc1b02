#include "src/device/soft/region_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace verbena::soft {
namespace {

// Why [begin, end) of a mapping cannot be pinned; empty if it can.
std::string why_not(const Vma& vma, uint64_t begin, uint64_t end, bool writes) {
  const std::string place = fmt::format("[{:#x}, {:#x})", begin, end);
  if (!vma.readable) {
    return fmt::format("{} cannot be read (it is {}); allow it with mprotect()", place,
                       vma.writable ? "PROT_WRITE" : "PROT_NONE");
  }
  if (writes && !vma.writable) {
    return fmt::format(
        "{} is read-only; register it without IBV_ACCESS_LOCAL_WRITE, or allow writing with "
        "mprotect()",
        place);
  }
  // Only the kernel knows whether the file reaches so far: it brings the pages in.
  if (vma.name[0] == '\0' || syscall(SYS_madvise, begin, end - begin, MADV_POPULATE_READ) == 0) {
    return {};
  }
  if (errno == EFAULT) {
    return fmt::format(
        "{} goes beyond the end of {}; register less, or make the file longer (hugetlb: provide "
        "more huge pages)",
        place, vma.name);
  }
  if (errno == EINVAL) {
    return fmt::format("{} is memory of a device or of the kernel ({}); register ordinary memory",
                       place, vma.name);
  }
  return {};
}

}  // namespace

Result<Segment> check_mapped_memory(const PageShare& pages, uint64_t address, uint64_t length_bytes,
                                    bool writes) {
  static const auto page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t begin = address & ~(page_bytes - 1);
  const uint64_t end = (address + length_bytes + page_bytes - 1) & ~(page_bytes - 1);
  const auto refused = [&](const std::string& reason) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("soft0: cannot register {} bytes at {:#x}: {}", length_bytes, address, reason));
  };
  Segment segment;
  uint64_t at = begin;
  VmaQuery::Scan scan(pages.mappings(), begin, end);
  for (Vma vma; at < end && scan.next(&vma); at = vma.end) {
    if (vma.start > at) break;
    // Private memory and what is shared already have no file to check; names cost time.
    const bool plain = (vma.inode == 0 && !vma.shared) || pages.shares(vma);
    if (!plain) VmaQuery::Scan(pages.mappings(), at, at + 1, VmaQuery::Detail::kNamed).next(&vma);
    const std::string reason = why_not(vma, at, std::min(end, vma.end), writes);
    if (!reason.empty()) return refused(reason);
    // The kernel calls these "/SYSV<key>" and shows the segment's number as inode. Parts with
    // different protections are mappings of their own.
    const uint64_t from = std::max(address, at);
    const uint64_t offset_bytes = vma.offset_bytes + (from - vma.start);
    const auto id = static_cast<int>(vma.inode);
    const bool is_segment = vma.shared && vma.named("/SYSV");
    if (at == begin) {
      segment = {id, offset_bytes, is_segment};
    } else {
      segment.found = segment.found && is_segment && id == segment.id &&
                      offset_bytes - segment.offset_bytes == from - address;
    }
  }
  if (at < end) {
    return refused(fmt::format("nothing is mapped at {:#x}; register memory that exists", at));
  }
  return segment;
}

}  // namespace verbena::soft
