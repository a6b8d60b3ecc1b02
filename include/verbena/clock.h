// Time as the library reads it, and polling loops that back off: on the machine, and in a
// simulation in virtual time. A program that takes both from here can run in both.
#pragma once

#include <cstdint>
#include <memory>

namespace verbena {

// Monotonic time since a point of its own. About 20 ns; no system call.
uint64_t now_ns();

// When a time that begins then ends; UINT64_MAX, which never comes, if no number tells it.
inline uint64_t end_of_ns(uint64_t begin_ns, uint64_t duration_ns) {
  return duration_ns <= UINT64_MAX - begin_ns ? begin_ns + duration_ns : UINT64_MAX;
}

// Gives the CPU away for at least so long.
void sleep_ns(uint64_t duration_ns);

class Waiter;

// Backs off in a polling loop: call idle() after a poll that found nothing, progress() after one
// that did. One per polling thread. Spins first, then yields the CPU at every poll, and where more
// threads poll than there are CPUs, sleeps for some 20 us. In a simulation, time passes only there.
class PollingBackoff {
 public:
  PollingBackoff();  // allocates
  ~PollingBackoff();
  PollingBackoff(const PollingBackoff&) = delete;
  PollingBackoff& operator=(const PollingBackoff&) = delete;

  void progress();
  void idle();

 private:
  std::unique_ptr<Waiter> waiter_;
};

}  // namespace verbena
