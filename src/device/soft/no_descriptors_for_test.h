// For tests: a process that has few file descriptors left, or none.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>

namespace verbena::soft::test {

// While it lives, this process can open so many files more. Those that are open stay.
class FewDescriptors {
 public:
  explicit FewDescriptors(rlim_t more) {
    if (getrlimit(RLIMIT_NOFILE, &before_) != 0) std::abort();
    const int lowest = dup(0);
    if (lowest < 0) std::abort();
    close(lowest);
    rlimit few = before_;
    few.rlim_cur = static_cast<rlim_t>(lowest) + more;
    if (setrlimit(RLIMIT_NOFILE, &few) != 0) std::abort();
  }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;
  ~FewDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

class NoDescriptors : public FewDescriptors {
 public:
  NoDescriptors() : FewDescriptors(0) {}
};

}  // namespace verbena::soft::test
