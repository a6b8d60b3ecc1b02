#include "src/device/fault/timer.h"

#include <chrono>
#include <utility>

namespace verbena::fault {

Timer::Timer() : thread_(start_thread("verbena-faults", [this] { run(); })) {}

Timer::~Timer() {
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Timer::call_at(uint64_t due_ns, std::function<void()> function) {
  bool first = false;
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    first = calls_.empty() || due_ns < calls_.begin()->first;
    calls_.emplace(due_ns, std::move(function));
  }
  if (first) changed_.notify_one();
}

void Timer::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stop_) {
    if (calls_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const auto next = calls_.begin();
    const uint64_t now = now_ns();
    if (next->first > now) {
      changed_.wait_for(lock, std::chrono::nanoseconds(next->first - now));
      continue;
    }
    const std::function<void()> function = std::move(next->second);
    calls_.erase(next);
    lock.unlock();
    function();
    lock.lock();
  }
}

}  // namespace verbena::fault
