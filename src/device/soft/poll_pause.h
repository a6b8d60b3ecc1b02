// Lets other threads run while a program polls completion queues in vain, where there are more
// runnable threads than CPUs (crowd_watch.h). Nothing of it happens elsewhere, or in programs whose
// loops back off by themselves, as this library's do: see allow_poll_pauses().
//
// A poller that found all its queues empty sleeps for a bounded time on a word of its own. Each of
// its queues names that word, so that a thread of the process that posts a request wakes it. Only
// who waits for the process's own requests sleeps: peers wake nobody.
//
// Where the woken thread runs decides how fast it gets on: next to the thread that posts, it takes
// over the CPU from it, when that one has posted. So the sleeper moves to that CPU, and the poster
// yields. Next to a thread that spins for the result, both would wait for ends of time slices.
#pragma once

#include <atomic>
#include <cstdint>

#include "src/device/soft/layout.h"

namespace verbena::soft {

struct Cq;

// The word that a polling thread sleeps on. Lives as long as the process, since queues name it
// after the end of the thread; several threads may share one.
class alignas(kCacheLineBytes) PollSleeper {
 public:
  // The sleeper: from here on, what is delivered is noticed.
  void arm() {
    state_.store(kArmed, std::memory_order_relaxed);
    // Store-load: pairs with delivered(). Either that sees the queue armed, or the polls that
    // follow see what was delivered.
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  // The sleeper, when it found something: it does not sleep before it has looked everywhere again.
  void disarm() { state_.store(kAwake, std::memory_order_relaxed); }
  bool armed() const { return state_.load(std::memory_order_relaxed) == kArmed; }
  // Sleeps unless something was delivered since arm(), until something is (true) or the time is
  // over (false).
  bool wait(uint64_t longest_ns);
  // The deliverer, after it: wakes the sleeper. True if it slept.
  bool delivered();
  bool asleep() const { return state_.load(std::memory_order_relaxed) == kAsleep; }

  // Where the latest deliverer ran, and where the sleeper did; -1 before.
  std::atomic<int> deliverer_cpu{-1};
  std::atomic<int> cpu{-1};

 private:
  static constexpr uint32_t kAwake = 0;
  static constexpr uint32_t kArmed = 1;
  static constexpr uint32_t kAsleep = 2;
  std::atomic<uint32_t> state_{kAwake};
};

// Called once, before polls, where the loops are the program's.
void allow_poll_pauses();

// So many empty polls of a queue in a row come between two calls of pause_in_poll() where there is
// no crowd; in one, each poll calls it.
inline constexpr uint32_t kPollsPerPause = 64;

// After a poll, the empty one with number `empty_polls` in a row, or 0 if it found something; holds
// no lock. Takes at most 0.1 ms, if nobody else has the CPU.
void pause_in_poll(Cq& cq, uint32_t empty_polls);
// After own requests were completed into a queue whose poller may sleep; holds no lock of the
// poller's.
void wake_poller(PollSleeper& poller);

}  // namespace verbena::soft
