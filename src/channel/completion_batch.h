// Completions, polled several at a time and taken one by one, by who reads the messages that came
// with receives.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

#include "src/base/assert.h"
#include "verbena/data_path.h"

namespace verbena::channel {

class CompletionBatch {
 public:
  CompletionBatch() = default;
  explicit CompletionBatch(ibv_cq* completions) : completions_(completions) {}

  // The next completion that was not taken, or null. It stays the next one until take().
  const ibv_wc* next() {
    if (next_ == count_ && !poll()) return nullptr;
    return &batch_[next_];
  }
  // What next() has found.
  const ibv_wc& current() const {
    VERBENA_DEBUG_ASSERT(next_ < count_);
    return batch_[next_];
  }
  void take() {
    VERBENA_DEBUG_ASSERT(next_ < count_);
    ++next_;
  }

  // The queue cannot be polled any more.
  bool failed() const { return failed_; }
  ibv_cq* queue() const { return completions_; }

 private:
  static constexpr int kCapacity = 16;

  // Whether the queue had any. A call of its own: loops over messages stay small.
  [[gnu::noinline]] bool poll() {
    const int found = poll_messages(completions_, kCapacity, batch_);
    next_ = 0;
    count_ = found > 0 ? static_cast<uint32_t>(found) : 0;
    if (found < 0) [[unlikely]]
      failed_ = true;
    return count_ > 0;
  }

  ibv_cq* completions_ = nullptr;
  uint32_t next_ = 0;
  uint32_t count_ = 0;
  bool failed_ = false;
  ibv_wc batch_[kCapacity];
};

}  // namespace verbena::channel
