// The connection manager's own descriptors, by the kernel alone: write() and close() are the ones
// that look for programs' channels, and would come back here, under its lock. One of its pipes may
// have the number of a channel that a program closed unseen.
#pragma once

#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstddef>

namespace verbena::soft::cm {

inline void close_own(int fd) { syscall(SYS_close, fd); }
inline ssize_t write_own(int fd, const void* bytes, size_t size_bytes) {
  return syscall(SYS_write, fd, bytes, size_bytes);
}

}  // namespace verbena::soft::cm
