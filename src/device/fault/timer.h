// A thread that calls functions at their time.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>

#include "src/base/runtime.h"

namespace verbena::fault {

class Timer {
 public:
  Timer();
  // Calls nothing any more once it returns.
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  bool running() const { return thread_.joinable(); }
  void call_at(uint64_t due_ns, std::function<void()> function);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::multimap<uint64_t, std::function<void()>> calls_;
  Thread thread_;
};

}  // namespace verbena::fault
