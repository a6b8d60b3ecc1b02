// The end of a lock on a whole file (flock).
#pragma once

#include <sys/file.h>

namespace verbena::soft {

// Unlocks a file that the caller has locked. Closing it would not be enough: a child that another
// thread forked meanwhile has the open file, too, and would keep the lock for as long as it lives.
class FileUnlock {
 public:
  explicit FileUnlock(int fd) : fd_(fd) {}
  ~FileUnlock() { flock(fd_, LOCK_UN); }
  FileUnlock(const FileUnlock&) = delete;
  FileUnlock& operator=(const FileUnlock&) = delete;

 private:
  int fd_;
};

}  // namespace verbena::soft
