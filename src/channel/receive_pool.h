// Posted receives: a fixed set, each tagged with its number.
//
// The completion returns the number (wr_id), and only that tells which buffer was filled: the order
// of arrival need not be the order of posting ("patterns" 4.1). A consumed receive is given back
// after its use; several go back as one list.
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "src/base/assert.h"
#include "src/channel/channel_error.h"
#include "src/memory/arena.h"

namespace verbena::channel {

// Where receives are posted: a queue pair's own queue, or one shared by many queue pairs.
struct OwnReceiveQueue {
  ibv_qp* queue_pair = nullptr;
  int post(ibv_recv_wr* list, ibv_recv_wr** rejected) const {
    return ibv_post_recv(queue_pair, list, rejected);
  }
};
struct SharedReceiveQueueRef {
  ibv_srq* queue = nullptr;
  int post(ibv_recv_wr* list, ibv_recv_wr** rejected) const {
    return ibv_post_srq_recv(queue, list, rejected);
  }
};

// Buffers of one size. Without bytes, receives that only take the immediate of a WRITE.
struct ReceiveBuffers {
  char* base = nullptr;
  uint32_t buffer_bytes = 0;
  uint32_t lkey = 0;
  // Where messages go on that are longer than that, all in one place: so they are known by their
  // length. 0 bytes: nowhere, and they fail the queue pair.
  char* excess = nullptr;
  uint32_t excess_bytes = 0;

  uint32_t pieces() const { return excess_bytes > 0 ? 2 : 1; }
  uint64_t stride_bytes() const { return round_up<uint64_t>(buffer_bytes, kCacheLineBytes); }
  static uint64_t size_bytes(uint32_t buffer_bytes, uint32_t count) {
    return count * round_up<uint64_t>(buffer_bytes, kCacheLineBytes);
  }
};

struct ReceivePoolSizes {
  uint32_t receives = 0;
  uint32_t repost_batch = 1;  // consumed receives go back as lists of this length

  // So many that `messages` may be on their way at once and none ever finds the queue empty,
  // although up to a batch of receives waits to go back.
  // Where buffers are small there are some more: whoever reposts seldom disturbs the sender, who
  // has to look at the queue's end, less.
  static ReceivePoolSizes for_messages(uint32_t messages, uint32_t buffer_bytes) {
    if (buffer_bytes <= kSmallBufferBytes) return {messages + kReceiveSlack, kMaxRepostBatch};
    const uint32_t batch = std::clamp(messages / 2, 1u, kMaxRepostBatch);
    return {messages + batch, batch};
  }
  // As many as asked for, though there may be more messages on their way.
  static ReceivePoolSizes of_depth(uint32_t receives, uint32_t messages) {
    const uint32_t spare = receives > messages ? receives - messages : 1;
    return {receives, std::min(spare, kMaxRepostBatch)};
  }

  static constexpr uint32_t kMaxRepostBatch = 8;
  static constexpr uint32_t kReceiveSlack = 2 * kMaxRepostBatch;
  static constexpr uint32_t kSmallBufferBytes = 4096;
};

template <typename Queue>
class ReceivePool {
 public:
  ReceivePool() = default;
  ReceivePool(Queue queue, const ReceiveBuffers& buffers, const ReceivePoolSizes& sizes)
      : queue_(queue),
        buffers_(buffers),
        repost_batch_(sizes.repost_batch),
        requests_(sizes.receives),
        entries_(size_t{sizes.receives} * buffers.pieces()) {
    VERBENA_ASSERT(sizes.repost_batch >= 1 && sizes.repost_batch <= sizes.receives);
    for (uint32_t number = 0; number < sizes.receives; ++number) {
      requests_[number].wr_id = number;
      if (buffers.buffer_bytes > 0) {
        ibv_sge* const entries = &entries_[size_t{number} * buffers.pieces()];
        entries[0] = {.addr = reinterpret_cast<uint64_t>(buffer(number)),
                      .length = buffers.buffer_bytes,
                      .lkey = buffers.lkey};
        if (buffers.excess_bytes > 0) {
          entries[1] = {.addr = reinterpret_cast<uint64_t>(buffers.excess),
                        .length = buffers.excess_bytes,
                        .lkey = buffers.lkey};
        }
        requests_[number].sg_list = entries;
        requests_[number].num_sge = static_cast<int>(buffers.pieces());
      }
    }
  }
  // The requests point to each other; moving the pool leaves them where they are.
  ReceivePool(ReceivePool&&) noexcept = default;
  ReceivePool& operator=(ReceivePool&&) noexcept = default;

  // Posts every receive; once, before the peer may send. 0, or an errno value.
  int post_all() {
    for (uint32_t number = 0; number < requests_.size(); ++number) {
      if (!give_back(number)) break;
    }
    flush();
    return error_.error;
  }

  uint32_t size() const { return static_cast<uint32_t>(requests_.size()); }
  char* buffer(uint64_t number) const {
    VERBENA_DEBUG_ASSERT(number < requests_.size());
    return buffers_.base + number * buffers_.stride_bytes();
  }

  // The receive `number` may be filled again. It is posted once the batch is full.
  bool give_back(uint64_t number) {
    VERBENA_DEBUG_ASSERT(number < requests_.size());
    VERBENA_DEBUG_ASSERT(waiting_ < repost_batch_);
    ibv_recv_wr* request = &requests_[number];
    VERBENA_DEBUG_ASSERT(request != first_);
    request->next = first_;
    first_ = request;
    if (++waiting_ < repost_batch_) return true;
    return flush();
  }

  const ChannelError& error() const { return error_; }

 private:
  bool flush() {
    if (first_ == nullptr) return true;
    ibv_recv_wr* rejected = nullptr;
    const int error = queue_.post(first_, &rejected);
    first_ = nullptr;
    waiting_ = 0;
    if (error == 0) [[likely]]
      return true;
    if (!error_) error_ = ChannelError::post_failed(error);
    return false;
  }

  Queue queue_;
  ReceiveBuffers buffers_;
  uint32_t repost_batch_ = 1;
  std::vector<ibv_recv_wr> requests_;
  std::vector<ibv_sge> entries_;
  ibv_recv_wr* first_ = nullptr;
  uint32_t waiting_ = 0;
  ChannelError error_;
};

}  // namespace verbena::channel
