#include "src/device/soft/cm/port_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <span>

#include "src/base/file_descriptor.h"
#include "src/base/runtime.h"
#include "src/device/soft/cm/own_descriptors.h"
#include "src/device/soft/file_lock.h"

namespace verbena::soft::cm {
namespace {

constexpr uint32_t kRecordMagic = 0x31706276;
constexpr const char* kPortPrefix = "cm.port.";
// A port that more share is refused, so that a file has a bound.
constexpr size_t kMaxRecords = 1024;
// As Linux's default for net.ipv4.ip_local_port_range.
constexpr uint16_t kFirstFreePort = 32768;
constexpr uint16_t kFreePorts = 28232;
constexpr uint64_t kReadPatienceMs = 50;

std::string file_name(uint16_t space, uint16_t port) {
  return fmt::format("{}{:04x}.{}", kPortPrefix, space, port);
}

// A file's content changes under its lock only, for as long as a read and a write take.
int lock_port(int fd, uint64_t patience_ms) {
  for (uint64_t waited_ms = 0; flock(fd, LOCK_EX | LOCK_NB) != 0; ++waited_ms) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return errno;
    if (waited_ms >= patience_ms) return EBUSY;
    sleep_ns(1'000'000);
  }
  return 0;
}

bool is_file(int fd) {
  struct stat opened {};
  return fstat(fd, &opened) == 0 && S_ISREG(opened.st_mode);
}

// Whether the name still leads to the open file: who finds no record in one removes it.
bool still_named(int directory_fd, const char* name, int fd) {
  struct stat named {};
  struct stat opened {};
  return fstatat(directory_fd, name, &named, AT_SYMLINK_NOFOLLOW) == 0 && fstat(fd, &opened) == 0 &&
         named.st_ino == opened.st_ino && named.st_dev == opened.st_dev;
}

std::vector<PortRecord> read_records(int fd) {
  std::vector<PortRecord> records(kMaxRecords);
  const ssize_t got = pread(fd, records.data(), records.size() * sizeof(PortRecord), 0);
  records.resize(got < 0 ? 0 : static_cast<size_t>(got) / sizeof(PortRecord));
  std::erase_if(records, [](const PortRecord& record) { return record.magic != kRecordMagic; });
  return records;
}

int write_records(int fd, std::span<const PortRecord> records) {
  const size_t size_bytes = records.size_bytes();
  // Whoever is killed in between leaves records twice, which does no harm.
  if (pwrite(fd, records.data(), size_bytes, 0) != static_cast<ssize_t>(size_bytes) ||
      ftruncate(fd, static_cast<off_t>(size_bytes)) != 0) {
    return errno == 0 ? EIO : errno;
  }
  return 0;
}

Endpoint endpoint_of(const PortRecord& record) {
  Endpoint endpoint;
  endpoint.family = record.family;
  endpoint.scope = record.scope;
  std::memcpy(endpoint.address.data(), record.address, sizeof(record.address));
  return endpoint;
}

bool overlap(const PortRecord& record, const PortWish& wish) {
  const Endpoint other = endpoint_of(record);
  if (other.family != wish.endpoint.family) {
    // An IPv6 wildcard takes IPv4's connections, too.
    const bool record_takes =
        other.family == AF_INET6 && other.is_wildcard() && record.only_ipv6 == 0;
    const bool wish_takes =
        wish.endpoint.family == AF_INET6 && wish.endpoint.is_wildcard() && !wish.only_ipv6;
    return record_takes || wish_takes;
  }
  return other.is_wildcard() || wish.endpoint.is_wildcard() || other.same_address(wish.endpoint);
}

}  // namespace

PortFiles::PortFiles(int directory_fd, PortOwner self, std::function<bool(const PortOwner&)> lives)
    : directory_fd_(directory_fd), self_(self), lives_(std::move(lives)) {}

bool PortFiles::is_owed(uint16_t space, uint16_t port, const PortRecord& record) const {
  return std::any_of(owed_.begin(), owed_.end(), [&](const PortWish& owed) {
    return owed.space == space && owed.endpoint.port == port && is_own(record, owed.id);
  });
}

bool PortFiles::is_own(const PortRecord& record, uint32_t id) const {
  return record.owner == self_ && record.id == id;
}

int PortFiles::change(uint16_t space, uint16_t port, const Change& apply, uint64_t patience_ms) {
  const std::string name = file_name(space, port);
  for (;;) {
    const FileDescriptor file(openat(directory_fd_, name.c_str(),
                                     O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
    // What is no file there is nobody's port.
    if (!file.valid()) return errno == EISDIR || errno == ELOOP ? EADDRINUSE : errno;
    if (!is_file(file.get())) return EADDRINUSE;
    if (const int error = lock_port(file.get(), patience_ms); error != 0) return error;
    const FileUnlock unlock(file.get());
    if (!still_named(directory_fd_, name.c_str(), file.get())) continue;
    std::vector<PortRecord> records = read_records(file.get());
    std::erase_if(records, [&](const PortRecord& record) {
      return is_owed(space, port, record) || !lives_(record.owner);
    });
    int result = apply(records);
    const int error = write_records(file.get(), records);
    if (error != 0 && result == 0) result = error;
    if (error == 0) forget_owed(space, port);
    // Nor does a file stay whose first record found no room.
    const bool has_none = records.empty() || (error != 0 && read_records(file.get()).empty());
    if (has_none) unlinkat(directory_fd_, name.c_str(), 0);
    return result;
  }
}

int PortFiles::take(PortWish& wish, uint16_t port) {
  return change(wish.space, port, [&](std::vector<PortRecord>& records) {
    for (const PortRecord& record : records) {
      if (overlap(record, wish) && !(wish.reusable && record.reusable != 0)) return EADDRINUSE;
    }
    if (records.size() >= kMaxRecords) return EADDRINUSE;
    PortRecord own{};
    own.magic = kRecordMagic;
    own.id = wish.id;
    own.owner = self_;
    own.family = wish.endpoint.family;
    own.reusable = wish.reusable;
    own.only_ipv6 = wish.only_ipv6;
    own.scope = wish.endpoint.scope;
    std::memcpy(own.address, wish.endpoint.address.data(), sizeof(own.address));
    records.push_back(own);
    wish.endpoint.port = port;
    return 0;
  });
}

int PortFiles::bind(PortWish& wish) {
  if (wish.endpoint.port != 0) return take(wish, wish.endpoint.port);
  uint32_t start = 0;
  if (getrandom(&start, sizeof(start), GRND_NONBLOCK) < 0) start = static_cast<uint32_t>(now_ns());
  for (uint32_t step = 0; step < kFreePorts; ++step) {
    const auto port =
        static_cast<uint16_t>(kFirstFreePort + (start % kFreePorts + step) % kFreePorts);
    const int error = take(wish, port);
    if (error != EADDRINUSE) return error;
  }
  return EADDRNOTAVAIL;
}

int PortFiles::listen(const PortWish& bound) {
  return change(bound.space, bound.endpoint.port, [&](std::vector<PortRecord>& records) {
    PortRecord* own = nullptr;
    for (PortRecord& record : records) {
      if (is_own(record, bound.id))
        own = &record;
      else if (overlap(record, bound))
        return EADDRINUSE;
    }
    if (own == nullptr) return EINVAL;
    own->listens = 1;
    own->reusable = 0;
    return 0;
  });
}

int PortFiles::set_options(const PortWish& bound) {
  return change(bound.space, bound.endpoint.port, [&](std::vector<PortRecord>& records) {
    for (PortRecord& record : records) {
      if (!is_own(record, bound.id)) continue;
      record.reusable = bound.reusable;
      record.only_ipv6 = bound.only_ipv6;
      return 0;
    }
    return EINVAL;
  });
}

void PortFiles::release(const PortWish& bound) {
  owed_.push_back(bound);
  remove_owed(bound.space, bound.endpoint.port, kLockPatienceMs);
}

void PortFiles::release_owed() {
  const std::vector<PortWish> owed = owed_;
  for (const PortWish& bound : owed) remove_owed(bound.space, bound.endpoint.port, 0);
}

void PortFiles::remove_owed(uint16_t space, uint16_t port, uint64_t patience_ms) {
  const Change nothing_else = [](std::vector<PortRecord>&) { return 0; };
  const int error = change(space, port, nothing_else, patience_ms);
  if (error != EBUSY && error != EMFILE && error != ENFILE) forget_owed(space, port);
}

void PortFiles::forget_owed(uint16_t space, uint16_t port) {
  std::erase_if(owed_, [&](const PortWish& owed) {
    return owed.space == space && owed.endpoint.port == port;
  });
}

Status nobody_listens() { return {StatusCode::kUnavailable, "soft0: nobody listens there"}; }

Result<PortRecord> PortFiles::listener(uint16_t space, const Endpoint& target) {
  const FileDescriptor file(openat(directory_fd_, file_name(space, target.port).c_str(),
                                   O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file.valid() && (errno == EMFILE || errno == ENFILE)) {
    return Status(StatusCode::kLimitExceeded,
                  fmt::format("soft0: cannot look for the listener of port {}: {}; raise the limit "
                              "of open files (ulimit -n)",
                              target.port, strerror(errno)));
  }
  if (!file.valid()) return nobody_listens();
  // Whoever keeps the lock for so long is stopped. What stands there is whole: before its one
  // write, or after it, when records may stand there twice.
  const int error = lock_port(file.get(), kReadPatienceMs);
  if (error != 0 && error != EBUSY) return nobody_listens();
  const FileUnlock unlock(file.get());
  PortRecord best{};
  int best_rank = 0;
  for (const PortRecord& record : read_records(file.get())) {
    if (record.listens == 0) continue;
    const Endpoint endpoint = endpoint_of(record);
    int rank = 0;
    if (endpoint.same_address(target)) {
      rank = 3;
    } else if (endpoint.is_wildcard()) {
      if (endpoint.family == target.family)
        rank = 2;
      else if (endpoint.family == AF_INET6 && record.only_ipv6 == 0)
        rank = 1;
    }
    if (rank <= best_rank || !lives_(record.owner)) continue;
    best = record;
    best_rank = rank;
  }
  if (best_rank == 0) return nobody_listens();
  return best;
}

void PortFiles::clean_up() {
  const int listing = openat(directory_fd_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* entries = listing < 0 ? nullptr : fdopendir(listing);
  if (entries == nullptr) {
    if (listing >= 0) close_own(listing);
    return;
  }
  std::vector<std::pair<uint16_t, uint16_t>> found;
  while (const dirent* entry = readdir(entries)) {
    unsigned space = 0;
    unsigned port = 0;
    if (sscanf(entry->d_name, "cm.port.%4x.%5u", &space, &port) == 2 && port <= UINT16_MAX) {
      found.emplace_back(space, port);
    }
  }
  closedir(entries);
  for (const auto& [space, port] : found) {
    change(space, port, [](std::vector<PortRecord>&) { return 0; });
  }
}

}  // namespace verbena::soft::cm
