// The sends of a reliable connection that wait for their peer, in their order.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "src/base/assert.h"

namespace verbena::soft {

// A work request that could not be carried out at once, with copies of what it points to.
struct WaitingSend {
  ibv_send_wr wr;
  uint32_t position;
  ibv_sge* sges;  // own array
  std::byte* inline_data;
};

// A ring as deep as the send queue. Under send_lock, but for count().
class WaitingSends {
 public:
  // What the first one waits for: a receive of the peer, or the peer itself.
  enum class Reason : uint8_t { kNothing, kReceiver, kPeer };

  void configure(uint32_t depth, uint32_t max_sges, uint32_t max_inline_bytes) {
    depth_ = depth;
    sends_ = std::make_unique<WaitingSend[]>(depth);
    sges_ = std::make_unique<ibv_sge[]>(size_t{depth} * max_sges);
    inline_data_.reset(new std::byte[size_t{depth} * max_inline_bytes + 1]);
    for (uint32_t i = 0; i < depth; ++i) {
      sends_[i].sges = &sges_[size_t{i} * max_sges];
      sends_[i].inline_data = &inline_data_[size_t{i} * max_inline_bytes];
    }
  }
  // From any thread.
  uint32_t count() const { return count_.load(std::memory_order_relaxed); }
  bool empty() const { return count() == 0; }

  const WaitingSend& front() const {
    VERBENA_DEBUG_ASSERT(!empty());
    return sends_[head_];
  }
  void push(const ibv_send_wr& wr, uint32_t position) {
    VERBENA_ASSERT(count() < depth_);
    // Whatever is posted behind one that waits, waits.
    VERBENA_ASSERT(empty() || position == front().position + count());
    WaitingSend& kept = sends_[(head_ + count()) % depth_];
    kept.wr = wr;
    kept.wr.next = nullptr;
    kept.wr.sg_list = kept.sges;
    kept.position = position;
    std::byte* inline_at = kept.inline_data;
    for (int i = 0; i < wr.num_sge; ++i) {
      kept.sges[i] = wr.sg_list[i];
      if ((wr.send_flags & IBV_SEND_INLINE) != 0 && wr.sg_list[i].length > 0) {
        memcpy(inline_at, reinterpret_cast<const void*>(wr.sg_list[i].addr), wr.sg_list[i].length);
        kept.sges[i].addr = reinterpret_cast<uint64_t>(inline_at);
        inline_at += wr.sg_list[i].length;
      }
    }
    count_.store(count() + 1, std::memory_order_relaxed);
  }
  void pop() {
    VERBENA_ASSERT(!empty());
    head_ = (head_ + 1) % depth_;
    reason = Reason::kNothing;
    count_.store(count() - 1, std::memory_order_relaxed);
  }

  Reason reason = Reason::kNothing;
  uint64_t deadline_ns = 0;  // 0: without end
  std::atomic<uint64_t> last_retry_ns{0};

 private:
  std::unique_ptr<WaitingSend[]> sends_;
  std::unique_ptr<ibv_sge[]> sges_;
  std::unique_ptr<std::byte[]> inline_data_;
  uint32_t depth_ = 0;
  uint32_t head_ = 0;
  std::atomic<uint32_t> count_{0};
};

}  // namespace verbena::soft
