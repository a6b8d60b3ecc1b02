// A lock that costs its usual user two plain stores.
//
// Verbs objects may be used from any thread, but nearly always one thread uses each. The first
// thread to lock becomes the owner; it enters without an atomic instruction. Any other thread
// revokes the ownership, after which the lock is an ordinary spin lock. The owner's "store busy,
// load owner" and the revoker's "store owner, load busy" need a store-load fence on both sides;
// membarrier(2) lets the revoker pay for both.
//
// Often the first thread only sets the object up, or another one looks at it once. So a thread that
// takes the spin lock many times in a row owns it from then on. Each time it needs more of them:
// threads that share an object for long soon leave it a spin lock.
#pragma once

#include <atomic>
#include <cstdint>

#include "src/base/assert.h"
#include "src/base/runtime.h"
#include "src/base/sanitizer.h"

namespace verbena::soft {

// A full fence on all threads of this process that are running (`heavy_fence`) or of all processes
// that use the software RNIC (`heavy_fence_all`); pairs with light_fence() on the other side.
void heavy_fence();
void heavy_fence_all();
// False where the kernel lacks membarrier: then light_fence() is a full fence.
extern const bool asymmetric_fences;

inline void light_fence() {
  if (asymmetric_fences) [[likely]] {
    std::atomic_signal_fence(std::memory_order_seq_cst);
  } else {
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
}

inline uint64_t this_thread_token() {
#if defined(__x86_64__)
  uint64_t token;
  asm("mov %%fs:0, %0" : "=r"(token));
  return token;
#else
  static thread_local char token;
  return reinterpret_cast<uint64_t>(&token);
#endif
}

class OwnerLock {
 public:
  // So often in a row a thread takes the spin lock before it owns it, the first time.
  static constexpr uint32_t kFirstRun = 64;

  // Holds the lock for a scope.
  class Guard {
   public:
    explicit Guard(OwnerLock& lock) : lock_(lock), as_owner_(lock.lock()) {}
    ~Guard() { lock_.unlock(as_owner_); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;
    // Whether this took no atomic instruction.
    bool as_owner() const { return as_owner_; }

   private:
    OwnerLock& lock_;
    bool as_owner_;
  };

  // For those who hold it longer than a scope; unlock() takes the result of lock().
  bool lock() {
#if !VERBENA_THREAD_SANITIZER
    const uint64_t me = this_thread_token();
    if (owner_.load(std::memory_order_relaxed) == me) [[likely]] {
      busy_.store(true, std::memory_order_relaxed);
      light_fence();  // pairs with heavy_fence() in lock_slowly(): either we see the revocation or
                      // it sees busy_
      if (owner_.load(std::memory_order_relaxed) == me) [[likely]] {
        return true;
      }
      busy_.store(false, std::memory_order_release);
    }
#endif
    return lock_slowly();
  }

  void unlock(bool as_owner) {
    VERBENA_DEBUG_ASSERT((as_owner ? busy_ : spin_).load(std::memory_order_relaxed));
    if (as_owner) [[likely]] {
      busy_.store(false, std::memory_order_release);
    } else {
      spin_.store(false, std::memory_order_release);
    }
  }

 private:
  static constexpr uint64_t kNobody = 0;
  static constexpr uint64_t kEverybody = 1;
  static constexpr uint32_t kRunGrowth = 8;
  static constexpr uint32_t kLongestRun = 1u << 30;

  bool lock_slowly();
  void lock_spin();
  void count_run(uint64_t me);

  std::atomic<uint64_t> owner_{kNobody};
  std::atomic<bool> busy_{false};
  std::atomic<bool> spin_{false};
  // Under the spin lock: who took it last, how often in a row, and how often is enough.
  uint32_t run_ = 0;
  uint32_t long_run_ = kFirstRun;
  uint64_t runner_ = kNobody;
};

}  // namespace verbena::soft
