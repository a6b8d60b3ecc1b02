// Events that were handed out for an object, and how many of them the program has acknowledged:
// destroying the object waits for these. Not in the public part, which the program can overwrite.
#pragma once

#include <cstdint>
#include <mutex>

#include "src/base/runtime.h"

namespace verbena::soft {

class EventCount {
 public:
  void deliver() {
    const std::lock_guard guard(mutex_);
    ++delivered_;
  }
  void acknowledge(uint32_t count) {
    const std::lock_guard guard(mutex_);
    acknowledged_ += count;
    changed_.notify_all();
  }
  bool is_settled() {
    const std::lock_guard guard(mutex_);
    return delivered_ == acknowledged_;
  }
  // Waits until all are acknowledged. Nothing delivers any more.
  void settle() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return delivered_ == acknowledged_; });
  }

 private:
  std::mutex mutex_;
  Condition changed_;
  uint64_t delivered_ = 0;
  uint64_t acknowledged_ = 0;
};

}  // namespace verbena::soft
