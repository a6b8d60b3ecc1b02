// The one place that starts threads, reads time, waits and draws random numbers.
//
// Code above never calls a clock, a sleep or a random generator of its own: so that polling loops
// back off in one way when cores are oversubscribed, and so that a simulated device can put its
// virtual time underneath.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "src/base/virtual_time.h"
#include "verbena/clock.h"

namespace verbena {

// Of the machine, also in a simulation: for what is told about the run itself.
uint64_t machine_now_ns();

// A pause between two polls of memory that another core will write.
inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// A thread that is joined when its owner is destroyed.
class Thread {
 public:
  Thread();
  Thread(Thread&&) noexcept;
  Thread& operator=(Thread&&) noexcept;
  ~Thread();
  void join();
  bool joinable() const;

 private:
  friend Thread start_thread(std::string name, std::function<void()> body);
  struct State;
  std::unique_ptr<State> state_;
};

// `name` is at most 15 characters (the kernel's limit); signals stay with the application's
// threads. Where the system refuses another thread, the reason is logged and the result is not
// joinable().
Thread start_thread(std::string name, std::function<void()> body);

// Where threads wait for each other off the data path: std::condition_variable, and in a simulation
// its like in virtual time.
class Condition {
 public:
  template <typename Predicate>
  void wait(std::unique_lock<std::mutex>& lock, Predicate&& ready) {
    wait_until(lock, UINT64_MAX, ready);
  }
  // False if it is not ready() after `timeout_ns`.
  template <typename Predicate>
  bool wait_for(std::unique_lock<std::mutex>& lock, uint64_t timeout_ns, Predicate&& ready) {
    const uint64_t start_ns = now_ns();
    return wait_until(lock, start_ns + std::min(timeout_ns, UINT64_MAX - start_ns), ready);
  }
  void notify_all() {
    if (VirtualTime* const time = VirtualTime::current()) {
      time->wake_all_at(this);
    } else {
      condition_.notify_all();
    }
  }

 private:
  template <typename Predicate>
  bool wait_until(std::unique_lock<std::mutex>& lock, uint64_t deadline_ns, Predicate& ready) {
    VirtualTime* const time = VirtualTime::current();
    while (!ready()) {
      if (time != nullptr) {
        // Whoever else runs must find the lock free; nobody runs before the wait has begun.
        lock.unlock();
        const bool woken = time->wait_at(this, deadline_ns);
        lock.lock();
        if (!woken) return ready();
      } else if (deadline_ns == UINT64_MAX) {
        condition_.wait(lock);
      } else {
        const uint64_t at_ns = now_ns();
        if (at_ns >= deadline_ns) return false;
        condition_.wait_for(lock, std::chrono::nanoseconds(deadline_ns - at_ns));
      }
    }
    return true;
  }

  std::condition_variable condition_;
};

// Pins the calling thread to one logical CPU, or to any of several; false where the kernel refuses.
bool pin_this_thread(int cpu);
bool pin_this_thread(const std::vector<int>& cpus);
// The CPUs that this process was started with, in the order in which to hand them out: one per
// physical core first, core by core and NUMA node by NUMA node, then the cores' further hardware
// threads. The first call takes milliseconds.
std::vector<int> usable_cpus();

// Backs off in a polling loop: call idle() after an empty poll, progress() when it found
// something. One per polling thread.
//
// It spins first (a `pause` per poll), then yields the CPU at every poll. On a core of its own a
// poller so never sleeps, and a yield comes back at once: latency stays that of polling. Where a
// yield shows that somebody else ran on this CPU (more pollers than cores), the spinning phase
// shrinks, so that the one who has work gets to run, and a poller that found nothing for a
// millisecond sleeps between polls until yields come back at once again.
class Waiter {
 public:
  // Polls before it yields, where cores are short.
  static constexpr uint32_t kSpinsCrowded = 64;

  // In a simulation the first empty poll already waits: time passes only there.
  Waiter() : spins_(VirtualTime::current() == nullptr ? kSpins : 0) {}

  void progress() {
    idle_looks_ = 0;
    first_yield_ns_ = 0;
  }
  // `due_ns`: when the caller will have something to do even if nothing comes, by now_ns().
  void idle(uint64_t due_ns = UINT64_MAX) {
    if (++idle_looks_ < spins_) [[likely]] {
      cpu_relax();
    } else {
      back_off(due_ns);
    }
  }

 private:
  static constexpr uint32_t kSpins = 4096;
  // A yield that long means that another thread had the CPU; alone it takes well below a
  // microsecond.
  static constexpr uint64_t kYieldTookLongNs = 4'000;
  // So many quick yields in a row and the CPU counts as free again.
  static constexpr uint32_t kCrowdedMemory = 64;
  static constexpr uint64_t kSleepAfterNs = 1'000'000;
  static constexpr uint64_t kSleepNs = 20'000;

  void back_off(uint64_t due_ns);

  uint32_t idle_looks_ = 0;
  uint32_t spins_;
  uint32_t crowded_ = 0;
  uint64_t first_yield_ns_ = 0;
  uint64_t switches_ = 0;
};

// A small, fast, seeded generator (not for secrets).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next();
  // Uniform in [0, bound); bound > 0.
  uint64_t below(uint64_t bound) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(next()) * bound) >> 64);
  }

 private:
  uint64_t state_;
};

// The seed of this run: VERBENA_SEED if set, else drawn from the system. Tests set it.
uint64_t run_seed();

// Fills `bytes` with bytes fit for secrets.
void secure_random(void* bytes, size_t size_bytes);

}  // namespace verbena
