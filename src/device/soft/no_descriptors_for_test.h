// For tests: a process that has no file descriptor left.
#pragma once

#include <sys/resource.h>

#include <cstdlib>

namespace verbena::soft::test {

// While it lives, this process can open no file. Those that are open stay.
class NoDescriptors {
 public:
  NoDescriptors() {
    if (getrlimit(RLIMIT_NOFILE, &before_) != 0) std::abort();
    rlimit none = before_;
    none.rlim_cur = 0;
    if (setrlimit(RLIMIT_NOFILE, &none) != 0) std::abort();
  }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;
  ~NoDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

}  // namespace verbena::soft::test
