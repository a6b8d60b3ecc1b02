#include "src/device/sim/shared_queue_lock.h"

#include <utility>

#include "src/base/assert.h"
#include "src/device/sim/simulation.h"

namespace verbena::sim {

SharedQueueLock::~SharedQueueLock() { delete shared(); }

SharedQueueLock::Shared* SharedQueueLock::shared() const {
  return (word_ & kShared) == 0 ? nullptr : reinterpret_cast<Shared*>(word_ & ~kShared);
}

SharedQueueLock::Shared& SharedQueueLock::share() {
  auto* const shared = new Shared{.owner = reinterpret_cast<const Fiber*>(word_ & ~kHeld),
                                  .held = (word_ & kHeld) != 0,
                                  .free_at = 0,
                                  .waiting = {}};
  word_ = reinterpret_cast<uintptr_t>(shared) | kShared;
  return *shared;
}

void SharedQueueLock::lock(Simulation& simulation, const Profile& profile) {
  Fiber* const thread = simulation.running();
  if (thread == nullptr || profile.shared_queue_lines == 0) return;
  const auto self = reinterpret_cast<uintptr_t>(thread);
  if (word_ == 0 || word_ == self) {
    word_ = self | kHeld;
    return;
  }
  Shared* const before = shared();
  Shared& queue = before != nullptr ? *before : share();
  if (!queue.held && queue.owner == thread) {
    queue.held = true;
    return;
  }
  simulation.catch_up();
  if (queue.held) {
    queue.waiting.push_back(thread);
    simulation.stand_still();  // until unlock() hands it over, still held
    VERBENA_ASSERT(queue.held);
  } else {
    queue.held = true;
    simulation.advance_to(queue.free_at);
  }
  if (std::exchange(queue.owner, thread) == thread) return;
  simulation.charge(profile.shared_queue_lines * profile.cpu_line_transfer +
                    profile.blueflame_lock_contended +
                    queue.waiting.size() * profile.blueflame_lock_waiter);
}

void SharedQueueLock::unlock(Simulation& simulation, const Profile& profile) {
  if (simulation.running() == nullptr || profile.shared_queue_lines == 0) return;
  Shared* const queue = shared();
  if (queue == nullptr) {
    VERBENA_ASSERT(word_ == (reinterpret_cast<uintptr_t>(simulation.running()) | kHeld));
    word_ &= ~kHeld;
    return;
  }
  VERBENA_ASSERT(queue->held);
  if (!queue->waiting.empty()) {
    // The next one goes on when this thread is done.
    simulation.catch_up();
    Fiber* const next = queue->waiting.front();
    queue->waiting.pop_front();
    simulation.go_on(*next);
    return;
  }
  queue->held = false;
  queue->free_at = simulation.local();
}

}  // namespace verbena::sim
