#include "src/base/vma_query.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>

namespace verbena {
namespace {

constexpr const char* kMapsPath = "/proc/self/maps";

// PROCMAP_QUERY of <linux/fs.h>, which older headers lack.
struct ProcmapQuery {
  uint64_t size;
  uint64_t query_flags;
  uint64_t query_addr;
  uint64_t vma_start;
  uint64_t vma_end;
  uint64_t vma_flags;
  uint64_t vma_page_size;
  uint64_t vma_offset;
  uint64_t inode;
  uint32_t dev_major;
  uint32_t dev_minor;
  uint32_t vma_name_size;
  uint32_t build_id_size;
  uint64_t vma_name_addr;
  uint64_t build_id_addr;
};
static_assert(sizeof(ProcmapQuery) == 104);
constexpr unsigned long kProcmapQuery = _IOWR('f', 17, ProcmapQuery);
constexpr uint64_t kReadable = 0x01;
constexpr uint64_t kWritable = 0x02;
constexpr uint64_t kExecutable = 0x04;
constexpr uint64_t kShared = 0x08;
constexpr uint64_t kCoveringOrNext = 0x10;
constexpr uint64_t kFileBacked = 0x20;

void set_name(Vma* vma, std::string_view name) {
  const size_t size = std::min(name.size(), sizeof(vma->name) - 1);
  if (size > 0) memcpy(vma->name, name.data(), size);
  vma->name[size] = 0;
}

// "start-end rwxp offset major:minor inode   name"
bool parse_line(std::string_view line, Vma* vma) {
  const char* at = line.data();
  const char* const end = at + line.size();
  auto number = [&](auto* value, int base, char separator) {
    const auto [rest, error] = std::from_chars(at, end, *value, base);
    if (error != std::errc() || rest == end || *rest != separator) return false;
    at = rest + 1;
    return true;
  };
  if (!number(&vma->start, 16, '-') || !number(&vma->end, 16, ' ') || end - at < 5) return false;
  vma->readable = at[0] == 'r';
  vma->writable = at[1] == 'w';
  vma->executable = at[2] == 'x';
  vma->shared = at[3] == 's';
  at += 5;
  if (!number(&vma->offset_bytes, 16, ' ') || !number(&vma->device_major, 16, ':') ||
      !number(&vma->device_minor, 16, ' ')) {
    return false;
  }
  const auto [rest, error] = std::from_chars(at, end, vma->inode, 10);
  if (error != std::errc()) return false;
  const std::string_view tail(rest, static_cast<size_t>(end - rest));
  const size_t name = tail.find_first_not_of(' ');
  set_name(vma, name == std::string_view::npos ? std::string_view() : tail.substr(name));
  vma->page_bytes = 0;
  return true;
}

}  // namespace

int Vma::protection() const {
  return (readable ? PROT_READ : 0) | (writable ? PROT_WRITE : 0) | (executable ? PROT_EXEC : 0);
}

bool Vma::named(const char* prefix) const { return strncmp(name, prefix, strlen(prefix)) == 0; }

Result<VmaQuery> VmaQuery::open(Source source) {
  VmaQuery query;
  VERBENA_RETURN_IF_ERROR(query.reopen());
  ProcmapQuery probe{};
  probe.size = sizeof(probe);
  probe.query_flags = kCoveringOrNext;
  query.by_query_ = source == Source::kBest && ioctl(query.maps_.get(), kProcmapQuery, &probe) == 0;
  return query;
}

Status VmaQuery::reopen() {
  const int maps = ::open(kMapsPath, O_RDONLY | O_CLOEXEC);
  const int error = errno;
  maps_ = HiddenDescriptor(maps);
  if (maps >= 0) return {};
  return {StatusCode::kUnsupported,
          fmt::format("cannot open {}: {}; mount /proc, and leave a file descriptor free "
                      "(ulimit -n)",
                      kMapsPath, strerror(error))};
}

VmaQuery::Scan::Scan(const VmaQuery& query, uint64_t begin, uint64_t end, Detail detail,
                     Which which)
    : query_(query), cursor_(begin), end_(end), detail_(detail), which_(which) {}

bool VmaQuery::Scan::next(Vma* vma) {
  if (cursor_ >= end_) return false;
  if (query_.by_query_) {
    if (!next_by_query(vma)) return false;
  } else {
    do {
      if (!next_line(vma)) return false;
    } while (vma->end <= cursor_ || (which_ == Which::kFileBacked && vma->inode == 0));
  }
  cursor_ = vma->end;
  return vma->start < end_;
}

bool VmaQuery::Scan::next_by_query(Vma* vma) {
  ProcmapQuery query{};
  query.size = sizeof(query);
  query.query_flags = kCoveringOrNext | (which_ == Which::kFileBacked ? kFileBacked : 0);
  query.query_addr = cursor_;
  if (detail_ == Detail::kNamed) {
    query.vma_name_addr = reinterpret_cast<uint64_t>(buffer_);
    query.vma_name_size = 4096;
  }
  buffer_[0] = 0;
  int failed = ioctl(query_.maps_.get(), kProcmapQuery, &query);
  if (failed != 0 && errno == ENAMETOOLONG) {
    query.vma_name_addr = 0;
    query.vma_name_size = 0;
    strcpy(buffer_, "/(a path of more than 4095 bytes)");
    failed = ioctl(query_.maps_.get(), kProcmapQuery, &query);
  }
  if (failed != 0) return false;
  vma->start = query.vma_start;
  vma->end = query.vma_end;
  vma->offset_bytes = query.vma_offset;
  vma->inode = query.inode;
  vma->device_major = query.dev_major;
  vma->device_minor = query.dev_minor;
  vma->page_bytes = query.vma_page_size;
  vma->readable = (query.vma_flags & kReadable) != 0;
  vma->writable = (query.vma_flags & kWritable) != 0;
  vma->executable = (query.vma_flags & kExecutable) != 0;
  vma->shared = (query.vma_flags & kShared) != 0;
  set_name(vma, buffer_);
  return true;
}

bool VmaQuery::Scan::next_line(Vma* vma) {
  for (;;) {
    const char* const text = buffer_ + taken_;
    const size_t size = buffered_ - taken_;
    if (const void* newline = memchr(text, '\n', size)) {
      const auto length = static_cast<size_t>(static_cast<const char*>(newline) - text);
      taken_ += length + 1;
      if (parse_line({text, length}, vma)) return true;
      continue;
    }
    // What does not fit is the end of a path; a line's beginning is all that matters.
    const size_t kept = std::min<size_t>(size, sizeof(buffer_) / 2);
    memmove(buffer_, text, kept);
    taken_ = 0;
    buffered_ = kept;
    ssize_t count;
    do {
      count =
          pread(query_.maps_.get(), buffer_ + buffered_, sizeof(buffer_) - buffered_, position_);
    } while (count < 0 && errno == EINTR);
    if (count <= 0) return false;
    position_ += count;
    buffered_ += static_cast<size_t>(count);
  }
}

}  // namespace verbena
