#include "src/device/soft/owner_lock.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace verbena::soft {
namespace {

long membarrier(int command) { return syscall(SYS_membarrier, command, 0, 0); }

bool register_fences() {
  return membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0 &&
         membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) == 0;
}

}  // namespace

const bool asymmetric_fences = register_fences();

void heavy_fence() {
  if (!asymmetric_fences || membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) != 0) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
}

void heavy_fence_all() {
  if (!asymmetric_fences || membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED) != 0) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
}

bool OwnerLock::lock_slowly() {
  const uint64_t me = this_thread_token();
  uint64_t owner = kNobody;
#if !VERBENA_THREAD_SANITIZER
  if (asymmetric_fences && owner_.compare_exchange_strong(owner, me)) {
    return lock();
  }
#endif
  lock_spin();
  owner = owner_.load(std::memory_order_relaxed);
  if (owner != kEverybody && owner != me) {
    owner_.store(kEverybody, std::memory_order_relaxed);
    heavy_fence();
    Waiter waiter;  // the owner may have lost its CPU in there
    while (busy_.load(std::memory_order_acquire)) {
      waiter.idle();
    }
  }
  count_run(me);
  return false;
}

// Holds the spin lock, and nobody is inside as the owner.
void OwnerLock::count_run(uint64_t me) {
  if (VERBENA_THREAD_SANITIZER) return;  // nobody owns a lock there
  run_ = runner_ == me ? run_ + 1 : 1;
  runner_ = me;
  if (run_ < long_run_ || !asymmetric_fences) return;
  run_ = 0;
  long_run_ = long_run_ < kLongestRun ? long_run_ * kRunGrowth : ~0u;
  VERBENA_ASSERT(owner_.load(std::memory_order_relaxed) == kEverybody);
  owner_.store(me, std::memory_order_relaxed);  // from the next time on
}

void OwnerLock::lock_spin() {
  Waiter waiter;
  while (spin_.exchange(true, std::memory_order_acquire)) {
    while (spin_.load(std::memory_order_relaxed)) {
      waiter.idle();
    }
  }
}

}  // namespace verbena::soft
