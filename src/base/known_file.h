// Knows the file of a descriptor again: a program may close the descriptor of a library, and then
// its number is that of another file.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "src/base/file_descriptor.h"

namespace verbena {

class KnownFile {
 public:
  KnownFile() = default;
  explicit KnownFile(int descriptor) {
    struct stat status {};
    if (fstat(descriptor, &status) != 0) return;
    known_ = true;
    device_ = status.st_dev;
    inode_ = status.st_ino;
  }
  // Whether the descriptor still is one of this file.
  bool is_at(int descriptor) const {
    struct stat status {};
    return known_ && fstat(descriptor, &status) == 0 && status.st_dev == device_ &&
           status.st_ino == inode_;
  }

 private:
  bool known_ = false;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

// Another descriptor of the file, out of the way of programs that close and count their first ones;
// any where the limit of descriptors is below. -1 if there is none.
inline int duplicate_out_of_the_way(int descriptor) {
  constexpr int kLeast = 200;
  const int far = fcntl(descriptor, F_DUPFD_CLOEXEC, kLeast);
  return far >= 0 ? far : fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
}

// A descriptor out of the way of programs. Closed when destroyed, unless the program has done that.
class HiddenDescriptor {
 public:
  HiddenDescriptor() = default;
  // Takes `descriptor`, and gives it another number; -1: there is none.
  explicit HiddenDescriptor(int descriptor) : descriptor_(descriptor) {
    if (!descriptor_.valid()) return;
    if (const int far = duplicate_out_of_the_way(descriptor); far >= 0) {
      descriptor_ = FileDescriptor(far);
    }
    known_ = KnownFile(descriptor_.get());
  }
  HiddenDescriptor(HiddenDescriptor&&) noexcept = default;
  HiddenDescriptor& operator=(HiddenDescriptor&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    std::swap(known_, other.known_);
    return *this;
  }
  ~HiddenDescriptor() {
    if (!is_there()) descriptor_.release();
  }

  int get() const { return descriptor_.get(); }
  bool is_there() const { return known_.is_at(descriptor_.get()); }

 private:
  FileDescriptor descriptor_;
  KnownFile known_;
};

}  // namespace verbena
