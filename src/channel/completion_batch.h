// Completions, polled several at a time and taken one by one. Messages that came with receives
// count as handled (data_path.h): who takes their completions here reads them.
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
    if (next_ == count_) {
      next_ = 0;
      const int count = poll_completions(completions_, kCapacity, batch_);
      count_ = count > 0 ? static_cast<uint32_t>(count) : 0;
      if (count < 0) [[unlikely]]
        failed_ = true;
      internal::count_received(batch_, count);
      if (count_ == 0) return nullptr;
    }
    return &batch_[next_];
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

  ibv_cq* completions_ = nullptr;
  uint32_t next_ = 0;
  uint32_t count_ = 0;
  bool failed_ = false;
  ibv_wc batch_[kCapacity];
};

}  // namespace verbena::channel
