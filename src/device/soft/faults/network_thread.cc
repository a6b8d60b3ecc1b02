#include "src/device/soft/faults/network_thread.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "src/base/log.h"
#include "src/device/soft/faults/send_faults.h"
#include "src/device/soft/poll_pause.h"
#include "src/device/soft/validity.h"

namespace verbena::soft::faults {
namespace {

std::atomic<Progress*> current{nullptr};

}  // namespace

void end_process(const char* reason) {
  log_info("soft0: process {} ends by SIGKILL: {}", getpid(), reason);
  kill(getpid(), SIGKILL);
}

Progress& Progress::get() {
  Progress* found = current.load(std::memory_order_acquire);
  if (found != nullptr && found->is_own()) [[likely]]
    return *found;
  // Two threads may make one each: the other one's goes before anybody has seen it.
  auto* made = new Progress;
  while (!current.compare_exchange_strong(found, made, std::memory_order_acq_rel)) {
    if (found == nullptr || !found->is_own()) continue;
    delete made;
    return *found;
  }
  // Kept until the process ends, as is its thread; that of a parent stays as it is.
  return *made;
}

Status Progress::start() {
  Progress& own = get();
  const std::lock_guard guard(own.start_mutex_);
  if (own.thread_.joinable()) return {};
  own.thread_ = start_thread("verbena-network", [&own] { own.serve(); });
  if (own.thread_.joinable()) return {};
  return {StatusCode::kLimitExceeded,
          "soft0: cannot start the thread of its network with faults; raise the limit of processes "
          "(ulimit -u, pids.max)"};
}

Progress* Progress::existing() {
  Progress* const found = current.load(std::memory_order_acquire);
  return found != nullptr && found->is_own() ? found : nullptr;
}

void Progress::stop() {
  stopped_.store(true);
  // Not for ever: exit() may have been called by a signal handler, in a thread that is at it.
  constexpr uint64_t kPatienceNs = 1'000'000'000;
  constexpr uint64_t kBetweenTriesNs = 100'000;
  const uint64_t start_ns = now_ns();
  while (!run_mutex_.try_lock()) {
    if (now_ns() - start_ns > kPatienceNs) return;
    sleep_ns(kBetweenTriesNs);
  }
  run_mutex_.unlock();
}

Progress::Progress() : process_(forks.load(std::memory_order_relaxed)) {}

bool Progress::is_own() const { return process_ == forks.load(std::memory_order_relaxed); }

void Progress::kill_at(uint64_t at_ns) {
  const std::lock_guard guard(list_mutex_);
  kill_at_ns_ = std::min(kill_at_ns_, at_ns);
  changed_.notify_all();
}

void Progress::list(SendFaults& sends, uint64_t due_ns) {
  if (!sends.listed.load(std::memory_order_relaxed)) {
    sends.listed.store(true, std::memory_order_relaxed);
    listed_.push_back(&sends);
  }
  if (due_ns >= next_due_ns_.load(std::memory_order_relaxed)) return;
  next_due_ns_.store(due_ns, std::memory_order_relaxed);
  // Also for what a poll puts back: the thread may have looked while it was not in the list.
  if (due_ns < sleeps_until_ns_) changed_.notify_all();
}

void Progress::add(SendFaults& sends, uint64_t due_ns) {
  const std::lock_guard guard(list_mutex_);
  list(sends, due_ns);
}

void Progress::remove(SendFaults& sends) {
  const std::lock_guard run_guard(run_mutex_);
  const std::lock_guard guard(list_mutex_);
  std::erase(listed_, &sends);
}

void Progress::wait_for_running() {
  const std::lock_guard run_guard(run_mutex_);
  std::vector<SendFaults*> all;
  {
    const std::lock_guard guard(list_mutex_);
    all = listed_;
  }
  for (SendFaults* sends : all) sends->wait();
}

void Progress::try_run() {
  const std::unique_lock guard(run_mutex_, std::try_to_lock);
  if (guard.owns_lock()) run();
}

void Progress::run() {
  {
    const std::lock_guard guard(list_mutex_);
    next_due_ns_.store(kNever, std::memory_order_relaxed);
    running_.swap(listed_);
    for (SendFaults* sends : running_) sends->listed.store(false, std::memory_order_relaxed);
  }
  for (SendFaults* sends : running_) {
    const uint64_t due_ns = sends->due_ns();
    if (due_ns == kNever) continue;
    if (due_ns > now_ns()) {
      // It may have become due earlier since; then it is listed so.
      const std::lock_guard guard(list_mutex_);
      list(*sends, due_ns);
      continue;
    }
    if (PollSleeper* const poller = sends->run(now_ns())) wake_poller(*poller);
  }
  running_.clear();
}

void Progress::serve() {
  // Otherwise the kernel adds 50 us to each sleep.
  prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
  for (;;) {
    {
      std::unique_lock lock(list_mutex_);
      const auto due_ns = [this] {
        return std::min(next_due_ns_.load(std::memory_order_relaxed), kill_at_ns_);
      };
      for (uint64_t now = now_ns(); due_ns() > now; now = now_ns()) {
        sleeps_until_ns_ = due_ns();
        const auto earlier = [&] { return due_ns() < sleeps_until_ns_; };
        if (sleeps_until_ns_ == kNever) {
          changed_.wait(lock, earlier);
        } else {
          changed_.wait_for(lock, sleeps_until_ns_ - now, earlier);
        }
        sleeps_until_ns_ = 0;
      }
      if (kill_at_ns_ <= now_ns()) end_process("its time is over");
    }
    const std::lock_guard guard(run_mutex_);
    if (stopped_.load()) return;
    run();
  }
}

}  // namespace verbena::soft::faults
