#include "src/device/soft/poll_pause.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <iterator>

#include "src/base/runtime.h"
#include "src/device/soft/crowd_watch.h"
#include "src/device/soft/objects.h"

namespace verbena::soft {
namespace {

// The kernel may add 50 us, the slack that it gives timers.
constexpr uint64_t kLongestPauseNs = 50'000;
// For so long one does not pause who has polled a queue where peers may deliver.
constexpr uint64_t kPeersRememberedNs = 10'000'000;

std::atomic<bool> pauses_allowed{false};

struct PollingThread {
  CrowdWatch watch;
  PollRound round;
  PauseBudget budget;
  uint64_t pauses_after_ns = 0;  // see kPeersRememberedNs
  PollSleeper* sleeper = nullptr;
};
thread_local constinit PollingThread polling_thread;

// Of all threads: as many as that poll at the same time have one each.
PollSleeper sleepers[64];
std::atomic<uint32_t> next_sleeper{0};

uint64_t involuntary_switches() {
  rusage usage;
  return getrusage(RUSAGE_THREAD, &usage) == 0 ? static_cast<uint64_t>(usage.ru_nivcsw) : 0;
}

// Whether something can come that no thread of this process posts.
bool awaits_peers(Cq& cq) {
  if (cq.waiting.load(std::memory_order_relaxed) != 0) return true;
  const OwnerLock::Guard guard(cq.lock);
  if (!cq.with_ready_bit.empty() || !cq.flushing.empty()) return true;
  return std::any_of(cq.scanned, cq.scanned + cq.scanned_count,
                     [](Qp* qp) { return qp->srq != nullptr || qp->receives.oldest() != nullptr; });
}

// Moves this thread to a CPU without keeping it there.
void move_to(int cpu) {
  cpu_set_t allowed;
  if (cpu < 0 || cpu >= CPU_SETSIZE || sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  if (!CPU_ISSET(cpu, &allowed)) return;
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(cpu, &only);
  if (sched_setaffinity(0, sizeof(only), &only) == 0) {
    sched_setaffinity(0, sizeof(allowed), &allowed);
  }
}

bool sleep_near_deliverer(PollSleeper& sleeper) {
  const int deliverer_cpu = sleeper.deliverer_cpu.load(std::memory_order_relaxed);
  int cpu = sched_getcpu();
  if (deliverer_cpu >= 0 && deliverer_cpu != cpu) {
    move_to(deliverer_cpu);
    cpu = sched_getcpu();
  }
  sleeper.cpu.store(cpu, std::memory_order_relaxed);
  return sleeper.wait(kLongestPauseNs);
}

// False if this thread is not to pause for now.
bool pause_in_crowd(PollingThread& thread, Cq& cq, uint64_t now) {
  if (awaits_peers(cq)) thread.pauses_after_ns = now + kPeersRememberedNs;
  if (now < thread.pauses_after_ns || !thread.budget.allows(now)) return false;
  if (thread.sleeper == nullptr) {
    const uint32_t number = next_sleeper.fetch_add(1, std::memory_order_relaxed);
    thread.sleeper = &sleepers[number % std::size(sleepers)];
  }
  PollSleeper& sleeper = *thread.sleeper;
  if (cq.poller.load(std::memory_order_relaxed) != &sleeper) {
    cq.poller.store(&sleeper, std::memory_order_relaxed);
  }
  const PollRound::Step step = thread.round.polled(&cq, !sleeper.armed());
  if (step == PollRound::Step::kBegins) sleeper.arm();
  if (step == PollRound::Step::kEnds) {
    const bool woken = sleep_near_deliverer(sleeper);
    thread.budget.note_pause(machine_now_ns(), woken);
  }
  return true;
}

}  // namespace

bool PollSleeper::wait(uint64_t longest_ns) {
  uint32_t expected = kArmed;
  if (!state_.compare_exchange_strong(expected, kAsleep)) return true;
  constexpr uint64_t kNsPerSecond = 1'000'000'000;
  const timespec longest{static_cast<time_t>(longest_ns / kNsPerSecond),
                         static_cast<long>(longest_ns % kNsPerSecond)};
  const int error = errno;
  syscall(SYS_futex, &state_, FUTEX_WAIT_PRIVATE, kAsleep, &longest, nullptr, 0);
  errno = error;
  return state_.exchange(kAwake) != kAsleep;
}

bool PollSleeper::delivered() {
  // Sequentially consistent: pairs with arm().
  if (state_.exchange(kAwake) != kAsleep) return false;
  const int error = errno;
  syscall(SYS_futex, &state_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  errno = error;
  return true;
}

void allow_poll_pauses() { pauses_allowed.store(true, std::memory_order_relaxed); }

void pause_in_poll(Cq& cq, uint32_t empty_polls) {
  if (!pauses_allowed.load(std::memory_order_relaxed)) return;
  PollingThread& thread = polling_thread;
  if (empty_polls == 0) {
    if (thread.sleeper != nullptr) thread.sleeper->disarm();
    return;
  }
  const uint64_t now = machine_now_ns();
  if (thread.watch.suspects(now)) thread.watch.count(now, involuntary_switches());
  const bool pauses = thread.watch.crowded(now) && pause_in_crowd(thread, cq, now);
  if (!pauses && cq.poller.load(std::memory_order_relaxed) != nullptr) {
    cq.poller.store(nullptr, std::memory_order_relaxed);
  }
}

void wake_poller(PollSleeper& poller) {
  const int cpu = sched_getcpu();
  poller.deliverer_cpu.store(cpu, std::memory_order_relaxed);
  if (poller.delivered() && poller.cpu.load(std::memory_order_relaxed) == cpu) sched_yield();
}

}  // namespace verbena::soft
