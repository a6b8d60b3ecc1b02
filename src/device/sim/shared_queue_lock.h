// The lock of a queue pair's send queue, or of a completion queue, where several threads use it.
#pragma once

#include <cstdint>

#include "src/device/sim/growing_ring.h"
#include "src/device/sim/rnic_profile.h"

namespace verbena::sim {

struct Fiber;
class Simulation;

// Threads get it in the order in which they come (pthread_spin_lock). What it guards comes from the
// core of who had it last (Profile::shared_queue_lines); while one thread alone uses the queue, the
// lock costs nothing that its operations do not cost in any case. A profile whose
// shared_queue_lines are 0 has no such locks.
class SharedQueueLock {
 public:
  SharedQueueLock() = default;
  ~SharedQueueLock();
  SharedQueueLock(const SharedQueueLock&) = delete;
  SharedQueueLock& operator=(const SharedQueueLock&) = delete;

  // By the running thread; no-op outside of threads. Others may run meanwhile.
  void lock(Simulation& simulation, const Profile& profile);
  void unlock(Simulation& simulation, const Profile& profile);

 private:
  // From the second thread on: most queues have one, and there are millions of them.
  struct Shared {
    const Fiber* owner;  // who has it, or had it last
    bool held;
    Time free_at;
    GrowingRing<Fiber*> waiting;
  };

  Shared* shared() const;
  Shared& share();

  // The only thread so far, with kHeld while it has the lock; or Shared, with kShared.
  static constexpr uintptr_t kHeld = 1;
  static constexpr uintptr_t kShared = 2;
  uintptr_t word_ = 0;
};

// Holds the lock from here to the end of its scope.
class SharedQueueGuard {
 public:
  SharedQueueGuard(SharedQueueLock& lock, Simulation& simulation, const Profile& profile)
      : lock_(lock), simulation_(simulation), profile_(profile) {
    lock_.lock(simulation_, profile_);
  }
  ~SharedQueueGuard() { lock_.unlock(simulation_, profile_); }
  SharedQueueGuard(const SharedQueueGuard&) = delete;
  SharedQueueGuard& operator=(const SharedQueueGuard&) = delete;

 private:
  SharedQueueLock& lock_;
  Simulation& simulation_;
  const Profile& profile_;
};

}  // namespace verbena::sim
