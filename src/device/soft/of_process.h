// Locks of a process, with what they guard.
#pragma once

#include <pthread.h>

#include <cstdint>
#include <memory>
#include <mutex>

#include "src/base/log.h"

namespace verbena::soft {

// Made when the library is loaded, and used until the process ends: at its first use by one thread,
// another one could be forking. A child of fork() begins with a new one: a thread of its parent may
// have been changing it, and nobody would ever unlock it there. So a child must need nothing of
// what its parent has in it.
template <typename Part>
class OfProcess {
 public:
  static Part& get() { return *kPart; }

 private:
  static Part* make() {
    // A fork may come before the part is there.
    pthread_atfork(nullptr, nullptr, [] {
      if (kPart != nullptr) std::construct_at(kPart);
    });
    return new Part;
  }
  static inline Part* const kPart = make();
};

// The one of its type.
template <typename Part>
Part& of_process() {
  return OfProcess<Part>::get();
}

// A few lines a second. Each kind is a type of its own, which inherits it.
struct RareLines {
  static constexpr uint32_t kPerPeriod = 5;
  static constexpr uint64_t kPeriodNs = 1'000'000'000;
  std::mutex mutex;
  LogRateLimit rate_limit{kPerPeriod, kPeriodNs};
};

}  // namespace verbena::soft
