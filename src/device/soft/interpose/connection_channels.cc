// Gives programs the connection manager's device file, /dev/infiniband/rdma_cm: librdmacm opens it
// once for each event channel, asks with fstat() whether it is a character device, writes commands
// into it and closes it. Every other descriptor passes at the cost of a load and a compare. Waiting
// for events needs no help: the descriptor is a pipe's (src/device/soft/cm).
#include "src/device/soft/interpose/connection_channels.h"

#include <sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "src/device/soft/interpose/installed.h"
#include "src/device/soft/interpose/replace.h"

// Programs built with glibc before 2.33 call these, which newer headers do not declare.
extern "C" {
int __fxstat(int version, int fd, struct stat* status);
int __fxstat64(int version, int fd, struct stat64* status);
}

namespace verbena::soft::interpose {
namespace {

constexpr const char* kChannelFile = "/dev/infiniband/rdma_cm";
constexpr int kDescriptors = 1 << 20;
constexpr int kWordBits = 64;

// A bit for each descriptor that was opened as a channel.
std::array<std::atomic<uint64_t>, kDescriptors / kWordBits> marks;
// Whose descriptors they are: a child of vfork() has the memory of its parent, but descriptors of
// its own. Negative: of the process that is just clearing those of its parent.
std::atomic<pid_t> owner{0};

// The definitions to call on: null until this library is initialized. Memory allocators call in
// before, and finding them then would allocate; the kernel is called directly so long.
std::atomic<ssize_t (*)(int, const void*, size_t)> found_write;
std::atomic<int (*)(int)> found_close;

template <typename Function>
void find_next(std::atomic<Function>& found, const char* name) {
  found.store(reinterpret_cast<Function>(dlsym(RTLD_NEXT, name)));
}

__attribute__((constructor)) void find_next_file_calls() {
  find_next(found_write, "write");
  find_next(found_close, "close");
}

bool is_marked(int fd) {
  return static_cast<unsigned>(fd) < kDescriptors &&
         (marks[fd / kWordBits].load(std::memory_order_relaxed) >> (fd % kWordBits) & 1) != 0;
}

void unmark(int fd) { marks[fd / kWordBits].fetch_and(~(uint64_t{1} << (fd % kWordBits))); }

// For a child of fork(), to which its parent's channels are none.
void own_marks() {
  const pid_t self = getpid();
  for (pid_t seen = owner.load(); seen != self; seen = owner.load()) {
    if (seen == -self) {
      sched_yield();  // another thread is at it
    } else if (owner.compare_exchange_strong(seen, -self)) {
      for (auto& word : marks) {
        if (word.load(std::memory_order_relaxed) != 0) word.store(0);
      }
      owner.store(self);
    }
  }
}

// Whether it still is a channel: some programs close all descriptors by the kernel alone.
bool is_channel(int fd) {
  if (!is_marked(fd)) [[likely]]
    return false;
  if (getpid() != owner.load(std::memory_order_relaxed)) return false;
  if (rnic().connection_channels->is_channel(fd)) return true;
  unmark(fd);
  return false;
}

// What a kernel with a connection manager of its own says: librdmacm compares.
dev_t device_number() {
  static const dev_t number = [] {
    dev_t found = 0;
    if (FILE* file = std::fopen("/sys/class/misc/rdma_cm/dev", "re")) {
      unsigned major_number = 0;
      unsigned minor_number = 0;
      if (std::fscanf(file, "%u:%u", &major_number, &minor_number) == 2) {
        found = makedev(major_number, minor_number);
      }
      std::fclose(file);
    }
    return found;
  }();
  return number;
}

template <typename Status>
int described(int result, int fd, Status* status) {
  if (result != 0 || !S_ISFIFO(status->st_mode) || !is_channel(fd)) return result;
  status->st_mode = S_IFCHR | 0666;
  status->st_rdev = device_number();
  return 0;
}

}  // namespace

bool names_connection_channel(const char* path) {
  return path != nullptr && path[0] == '/' && std::strcmp(path, kChannelFile) == 0 &&
         rnic().device != nullptr;
}

int open_connection_channel(int flags) {
  const int fd = rnic().connection_channels->open(flags);
  if (fd < 0) return -1;
  if (fd >= kDescriptors) {
    close(fd);
    errno = EMFILE;
    return -1;
  }
  own_marks();
  marks[fd / kWordBits].fetch_or(uint64_t{1} << (fd % kWordBits));
  return fd;
}

}  // namespace verbena::soft::interpose

using namespace verbena::soft::interpose;  // NOLINT: definitions below are global

VERBENA_REPLACE(write) ssize_t verbena_write(int fd, const void* bytes, size_t size_bytes) {
  if (is_channel(fd)) [[unlikely]]
    return rnic().connection_channels->write(fd, bytes, size_bytes);
  if (auto* next = found_write.load(std::memory_order_relaxed)) return next(fd, bytes, size_bytes);
  return syscall(SYS_write, fd, bytes, size_bytes);
}

VERBENA_REPLACE(close) int verbena_close(int fd) {
  const bool was_channel = is_channel(fd);
  if (was_channel) unmark(fd);
  auto* next = found_close.load(std::memory_order_relaxed);
  const int result = next != nullptr ? next(fd) : static_cast<int>(syscall(SYS_close, fd));
  if (was_channel) [[unlikely]] {
    const int error = errno;
    rnic().connection_channels->closed();
    errno = error;
  }
  return result;
}

VERBENA_REPLACE(fstat) int verbena_fstat(int fd, struct stat* status) noexcept {
  return described(VERBENA_NEXT(fstat)(fd, status), fd, status);
}

VERBENA_REPLACE(fstat64) int verbena_fstat64(int fd, struct stat64* status) noexcept {
  return described(VERBENA_NEXT(fstat64)(fd, status), fd, status);
}

VERBENA_REPLACE(__fxstat) int verbena___fxstat(int version, int fd, struct stat* status) {
  return described(VERBENA_NEXT(__fxstat)(version, fd, status), fd, status);
}

VERBENA_REPLACE(__fxstat64) int verbena___fxstat64(int version, int fd, struct stat64* status) {
  return described(VERBENA_NEXT(__fxstat64)(version, fd, status), fd, status);
}
