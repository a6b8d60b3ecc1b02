// Locks of a process, with what they guard.
#pragma once

#include <pthread.h>

#include <memory>

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
    pthread_atfork(nullptr, nullptr, [] { std::construct_at(kPart); });
    return new Part;
  }
  static inline Part* const kPart = make();
};

// The one of its type.
template <typename Part>
Part& of_process() {
  return OfProcess<Part>::get();
}

}  // namespace verbena::soft
