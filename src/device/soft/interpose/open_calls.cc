// The C library's calls that open a file, for programs that open the connection manager's.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>

#include "src/device/soft/interpose/connection_channels.h"
#include "src/device/soft/interpose/replace.h"

namespace verbena::soft::interpose {
namespace {

// The definitions to call on: null until this library is initialized. Memory allocators open files
// before, and finding them then would allocate; the kernel is called directly so long.
using Open = int (*)(const char*, int, ...);
using OpenAt = int (*)(int, const char*, int, ...);
std::atomic<Open> found_open;
std::atomic<Open> found_open64;
std::atomic<OpenAt> found_openat;
std::atomic<OpenAt> found_openat64;

__attribute__((constructor)) void find_next_open_calls() {
  found_open.store(reinterpret_cast<Open>(dlsym(RTLD_NEXT, "open")));
  found_open64.store(reinterpret_cast<Open>(dlsym(RTLD_NEXT, "open64")));
  found_openat.store(reinterpret_cast<OpenAt>(dlsym(RTLD_NEXT, "openat")));
  found_openat64.store(reinterpret_cast<OpenAt>(dlsym(RTLD_NEXT, "openat64")));
}

bool takes_mode(int flags) { return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE; }

}  // namespace
}  // namespace verbena::soft::interpose

using namespace verbena::soft::interpose;  // NOLINT: definitions below are global

// A mode follows only flags that take one.
#define VERBENA_MODE(flags)           \
  mode_t mode = 0;                    \
  if (takes_mode(flags)) {            \
    va_list arguments;                \
    va_start(arguments, flags);       \
    mode = va_arg(arguments, mode_t); \
    va_end(arguments);                \
  }

VERBENA_REPLACE(open) int verbena_open(const char* path, int flags, ...) {
  VERBENA_MODE(flags)
  if (names_connection_channel(path)) [[unlikely]]
    return open_connection_channel(flags);
  if (auto* next = found_open.load(std::memory_order_relaxed)) return next(path, flags, mode);
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

VERBENA_REPLACE(open64) int verbena_open64(const char* path, int flags, ...) {
  VERBENA_MODE(flags)
  if (names_connection_channel(path)) [[unlikely]]
    return open_connection_channel(flags);
  if (auto* next = found_open64.load(std::memory_order_relaxed)) return next(path, flags, mode);
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags | O_LARGEFILE, mode));
}

VERBENA_REPLACE(openat) int verbena_openat(int directory, const char* path, int flags, ...) {
  VERBENA_MODE(flags)
  if (names_connection_channel(path)) [[unlikely]]
    return open_connection_channel(flags);
  if (auto* next = found_openat.load(std::memory_order_relaxed)) {
    return next(directory, path, flags, mode);
  }
  return static_cast<int>(syscall(SYS_openat, directory, path, flags, mode));
}

VERBENA_REPLACE(openat64) int verbena_openat64(int directory, const char* path, int flags, ...) {
  VERBENA_MODE(flags)
  if (names_connection_channel(path)) [[unlikely]]
    return open_connection_channel(flags);
  if (auto* next = found_openat64.load(std::memory_order_relaxed)) {
    return next(directory, path, flags, mode);
  }
  return static_cast<int>(syscall(SYS_openat, directory, path, flags | O_LARGEFILE, mode));
}
