#include "src/device/sim/host_cores.h"

#include <algorithm>
#include <utility>

#include "src/base/assert.h"
#include "src/device/sim/rnic_profile.h"
#include "src/device/sim/simulation.h"

namespace verbena::sim {

namespace {

// So long Waiter polls for nothing before it sleeps between polls, and the system may give the core
// to another thread.
constexpr Time kPollsFor = 1'000'000 * kPsPerNs;
// A thread that gives way sooner has only polled.
constexpr Time kLeastWork = 1'000 * kPsPerNs;

}  // namespace

HostCores::HostCores(Simulation& simulation, const Profile& profile, uint64_t seed)
    : simulation_(simulation),
      switch_(profile.cpu_switch),
      slice_(profile.cpu_slice),
      turn_(profile.cpu_switch + profile.cpu_poll),
      hold_(Waiter::kSpinsCrowded * (profile.cpu_poll + profile.poll_empty + profile.cpu_pause)),
      dice_(seed),
      cores_(profile.cores * profile.sockets) {}

// The one with the fewest threads, any of several such.
HostCore& HostCores::core_for_thread() {
  HostCore* least = nullptr;
  uint64_t alike = 0;
  for (HostCore& core : cores_) {
    if (least != nullptr && core.threads > least->threads) continue;
    alike = least != nullptr && core.threads == least->threads ? alike + 1 : 1;
    if (dice_.below(alike) == 0) least = &core;
  }
  return *least;
}

void HostCores::take_from_another(HostCore& idle) {
  if (simulation_.local() <= idle.active_at + kPollsFor) return;
  for (HostCore& other : cores_) {
    if (other.queue.empty()) continue;
    Fiber& first = *other.queue.front();
    other.queue.pop_front();
    --other.threads;
    ++idle.threads;
    first.core.core = &idle;
    idle.queue.push_back(&first);
    return;
  }
}

bool HostCores::some_wait() const {
  return std::any_of(cores_.begin(), cores_.end(),
                     [](const HostCore& core) { return !core.queue.empty(); });
}

bool HostCores::admit(Fiber& fiber) {
  CorePlace& place = fiber.core;
  place.stands = false;
  if (place.holds) {
    place.polls = false;
    place.resumed_at = simulation_.local();
    return true;
  }
  if (place.queued) return false;
  if (place.core == nullptr) {
    place.core = &core_for_thread();
    ++place.core->threads;
  }
  // From here on what comes finds a thread that will poll before it waits.
  if (fiber.state == Fiber::State::kPolling) fiber.state = Fiber::State::kReady;
  make_room(*place.core);
  HostCore& core = *place.core;
  if (core.holder == nullptr) {
    // The core goes round among its pollers, of which this one has found something.
    const Time delay = place.polls ? dice_.below(core.pollers) * turn_ : switch_;
    start(fiber, delay);
    return false;
  }
  if (place.polls) --core.pollers;
  place.polls = false;
  place.queued = true;
  core.queue.push_back(&fiber);
  for (HostCore& any : cores_) make_room(any);
  return false;
}

void HostCores::start(Fiber& fiber, Time delay) {
  CorePlace& place = fiber.core;
  HostCore& core = *place.core;
  VERBENA_DEBUG_ASSERT(!place.holds && core.holder == nullptr);
  place.since = simulation_.local() + delay;
  if (place.polls) --core.pollers;
  place.holds = true;
  place.polls = place.queued = false;
  core.holder = &fiber;
  simulation_.resume_at(fiber, place.since);
}

void HostCores::release(HostCore& core) {
  core.holder->core.holds = false;
  core.holder = nullptr;
}

void HostCores::polls(Fiber& fiber) {
  VERBENA_DEBUG_ASSERT(fiber.core.holds);
  const Time now = simulation_.local();
  fiber.core.polls = true;
  fiber.core.hold_until = now + hold_;
  if (now > fiber.core.resumed_at + kLeastWork) fiber.core.core->active_at = now;
  make_room(*fiber.core.core);
}

void HostCores::leaves(Fiber& fiber) {
  HostCore& core = *fiber.core.core;
  VERBENA_DEBUG_ASSERT(core.holder == &fiber);
  release(core);
  --core.threads;
  fiber.core.core = nullptr;
  make_room(core);
}

bool HostCores::slice_is_over(const Fiber& fiber) const {
  return !fiber.core.core->queue.empty() && fiber.local > fiber.core.since + slice_;
}

void HostCores::give_way(Fiber& fiber) {
  HostCore& core = *fiber.core.core;
  release(core);
  fiber.core.queued = true;
  core.queue.push_back(&fiber);
  make_room(core);
}

void HostCores::stands(Fiber& fiber) {
  fiber.core.stands = true;
  make_room(*fiber.core.core);
}

void HostCores::forget(Fiber& fiber) {
  CorePlace& place = fiber.core;
  if (place.core == nullptr) return;
  HostCore& core = *std::exchange(place.core, nullptr);
  --core.threads;
  if (core.holder == &fiber) {
    core.holder = nullptr;
  } else if (place.queued) {
    std::erase(core.queue, &fiber);
  } else {
    --core.pollers;
  }
  place.holds = place.polls = place.stands = place.queued = false;
  make_room(core);
}

void HostCores::room_event(void* object, uint64_t cores) {
  auto& core = *static_cast<HostCore*>(object);
  if (core.room_due <= Simulation::current()->now()) core.room_due = kNever;
  reinterpret_cast<HostCores*>(cores)->make_room(core);
}

void HostCores::make_room(HostCore& core) {
  const Time now = simulation_.local();
  Fiber* const holder = core.holder;
  const bool polls = holder != nullptr && holder->core.polls;
  const bool stands = holder != nullptr && holder->core.stands;
  Time until = kNever;
  if (polls) until = holder->core.hold_until;
  if (stands && !core.queue.empty()) until = holder->core.since + slice_;
  if (until <= now) {
    release(core);
    if (polls) {
      ++core.pollers;
    } else {
      // It looks for a core again once it goes on.
      --core.threads;
      holder->core.core = nullptr;
    }
  }
  if (core.holder == nullptr && core.queue.empty()) take_from_another(core);
  if (core.holder == nullptr && !core.queue.empty()) {
    Fiber& first = *core.queue.front();
    core.queue.pop_front();
    start(first, switch_);
  } else if (core.holder != nullptr && until < core.room_due && some_wait()) {
    core.room_due = until;
    simulation_.at(until, room_event, &core, reinterpret_cast<uint64_t>(this));
  }
}

}  // namespace verbena::sim
