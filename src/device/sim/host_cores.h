// The cores of a machine that all nodes share: who runs where more threads have something to do, or
// poll, than there are cores.
//
// A thread that wakes goes to the core with the fewest threads, and stays there until it sleeps, or
// has to wait while all threads of another core have found nothing for a while.
// Threads of a core poll as Waiter (runtime.h) has them poll where cores are short: after the last
// find a thread polls so many times more, and then gives way at each empty poll. So the core is a
// thread's from when it found something until that long after, or until its time slice is over and
// others want it; otherwise it goes round among all that poll.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "src/base/runtime.h"
#include "src/device/sim/event_queue.h"

namespace verbena::sim {

struct Fiber;
struct Profile;
class Simulation;
struct HostCore;

// Of a thread, as HostCores sees it.
struct CorePlace {
  HostCore* core = nullptr;  // null: it sleeps
  bool holds = false;        // its core
  bool polls = false;   // finds nothing; if it holds its core, that is its own until hold_until
  bool stands = false;  // holds its core, and waits for another thread
  bool queued = false;  // has something to do, and waits for its core
  Time since = 0;       // has held its core
  Time resumed_at = 0;
  Time hold_until = 0;
};

struct HostCore {
  Fiber* holder = nullptr;
  std::deque<Fiber*> queue;  // have something to do
  uint64_t pollers = 0;      // besides the holder
  uint64_t threads = 0;      // all of them
  Time room_due = kNever;    // an event will look for room then
  Time active_at = 0;        // a thread did something then, besides polling
};

class HostCores {
 public:
  HostCores(Simulation& simulation, const Profile& profile, uint64_t seed);

  // The thread is to run. False: its core is not free yet, and it is resumed as soon as it is.
  bool admit(Fiber& fiber);
  // It found nothing.
  void polls(Fiber& fiber);
  // It sleeps, or has ended.
  void leaves(Fiber& fiber);
  // Whether others wait for its core and it has had its slice; then it leaves by give_way(), and is
  // resumed when its turn comes again.
  bool slice_is_over(const Fiber& fiber) const;
  void give_way(Fiber& fiber);
  // It spins until another thread lets it go on, so it keeps its core until its slice is over.
  void stands(Fiber& fiber);
  // Its node has crashed: it never runs again, whatever it was doing.
  void forget(Fiber& fiber);

 private:
  HostCore& core_for_thread();
  // One of those that wait for another core goes on this one, if its threads have found nothing for
  // long.
  void take_from_another(HostCore& idle);
  bool some_wait() const;
  // Takes the core from a thread that has polled or spun long enough, and gives it to the next one.
  void make_room(HostCore& core);
  static void room_event(void* core, uint64_t cores);
  void release(HostCore& core);
  void start(Fiber& fiber, Time delay);

  Simulation& simulation_;
  const Time switch_;
  const Time slice_;
  const Time turn_;  // of a thread that finds nothing
  const Time hold_;
  Random dice_;
  std::vector<HostCore> cores_;
};

}  // namespace verbena::sim
