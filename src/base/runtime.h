// The one place that starts threads, reads time, waits and draws random numbers.
//
// Code above never calls a clock, a sleep or a random generator of its own: so that polling loops
// back off in one way when cores are oversubscribed, and so that a simulated device can put its
// virtual time underneath.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace verbena {

// Monotonic time.
uint64_t now_ns();

// A pause between two looks at memory that another core will write.
inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

void sleep_ns(uint64_t duration_ns);

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

// Pins the calling thread to one logical CPU; false where the kernel refuses.
bool pin_this_thread(int cpu);
// The CPUs that this process was started with, in the order in which to hand them out: one per
// physical core first, core by core and NUMA node by NUMA node, then the cores' further hardware
// threads. The first call takes milliseconds.
std::vector<int> usable_cpus();

// Backs off in a polling loop: call idle() when a look found nothing, progress() when it found
// something. One per polling thread.
//
// It spins first (a `pause` per look), then yields the CPU at every look. On a core of its own a
// poller so never sleeps, and a yield comes back at once: latency stays that of polling. Where a
// yield shows that somebody else ran on this CPU (more pollers than cores), the spinning phase
// shrinks, so that the one who has work gets to run, and a poller that found nothing for a
// millisecond sleeps between looks until yields come back at once again.
class Waiter {
 public:
  void progress() {
    idle_looks_ = 0;
    first_yield_ns_ = 0;
  }
  void idle() {
    if (++idle_looks_ < spins_) [[likely]] {
      cpu_relax();
    } else {
      back_off();
    }
  }

 private:
  static constexpr uint32_t kSpins = 4096;
  static constexpr uint32_t kSpinsCrowded = 64;
  // A yield that long means that another thread had the CPU; alone it takes well below a
  // microsecond.
  static constexpr uint64_t kYieldTookLongNs = 4'000;
  // So many quick yields in a row and the CPU counts as free again.
  static constexpr uint32_t kCrowdedMemory = 64;
  static constexpr uint64_t kSleepAfterNs = 1'000'000;
  static constexpr uint64_t kSleepNs = 20'000;

  void back_off();

  uint32_t idle_looks_ = 0;
  uint32_t spins_ = kSpins;
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

// The seed of this run: VERBENA_SEED if set, else drawn from the system. Tests print it.
uint64_t run_seed();

// Fills `bytes` with bytes fit for secrets.
void secure_random(void* bytes, size_t size_bytes);

}  // namespace verbena
