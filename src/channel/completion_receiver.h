// The receiving end of channels whose messages consume a receive: SEND and WRITE_WITH_IMM.
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "src/channel/channel.h"
#include "src/channel/receive_pool.h"

namespace verbena::channel {

inline constexpr uint32_t kPollBatch = 16;

// Checks a receive's completion against what a well-behaved peer causes. Null, or what it did.
inline const char* receive_violation(const ibv_wc& completion, ibv_wc_opcode expected,
                                     uint32_t capacity_bytes) {
  if (completion.opcode != expected || (completion.wc_flags & IBV_WC_WITH_IMM) == 0) {
    return "it sent by another verb than agreed";
  }
  if (completion.byte_len > capacity_bytes) return "its message is larger than agreed";
  return nullptr;
}

// One connection's own receive queue. kPayloadInSlots: the message lies in the slot that it names
// (WRITE_WITH_IMM), else in the buffer of the receive that it consumed (SEND).
template <bool kPayloadInSlots>
class CompletionReceiver {
 public:
  CompletionReceiver() = default;
  explicit CompletionReceiver(const ReceiverSetup& setup)
      : slots_(setup.slots),
        completions_(setup.receive_completions),
        pool_({setup.queue_pair}, setup.buffers, setup.receives),
        held_(kPayloadInSlots ? 0 : setup.slots.count, kNone) {}

  int post_receives() { return pool_.post_all(); }

  template <EligibleFunction Eligible, DeliverFunction Deliver>
  uint32_t poll(uint32_t limit, Eligible&& eligible, Deliver&& deliver) {
    ibv_wc completions[kPollBatch];
    const int count =
        ibv_poll_cq(completions_, static_cast<int>(std::min(limit, kPollBatch)), completions);
    if (count <= 0) {
      if (count < 0) error_ = ChannelError::poll_failed();
      return 0;
    }
    for (int i = 0; i < count; ++i) {
      if (!take(completions[i], eligible, deliver)) [[unlikely]]
        return static_cast<uint32_t>(i);
    }
    return static_cast<uint32_t>(count);
  }

  void release(uint32_t /*slot*/) {}
  // The response in `slot` was used and the next request is on its way: time to repost its receive.
  void after_post(uint32_t slot) {
    if constexpr (!kPayloadInSlots) {
      if (held_[slot] == kNone) return;
      pool_.give_back(std::exchange(held_[slot], kNone));
    }
  }

  const ChannelError& error() const { return error_ ? error_ : pool_.error(); }

 private:
  static constexpr uint32_t kNone = ~0u;

  template <EligibleFunction Eligible, DeliverFunction Deliver>
  bool take(const ibv_wc& completion, Eligible& eligible, Deliver& deliver) {
    if (completion.status != IBV_WC_SUCCESS) [[unlikely]] {
      if (!error_) error_ = ChannelError::completed_with(completion.status);
      return false;
    }
    constexpr ibv_wc_opcode kExpected = kPayloadInSlots ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
    const char* violation = receive_violation(completion, kExpected, slots_.shape.capacity_bytes);
    const MessageTag tag = MessageTag::from_completion(completion);
    if (violation == nullptr && (tag.slot >= slots_.count || !eligible(tag.slot))) {
      violation = "it answered a request that was not made";
    }
    if (violation != nullptr) [[unlikely]] {
      error_ = ChannelError::peer_violated(violation);
      return false;
    }
    const char* payload;
    if constexpr (kPayloadInSlots) {
      payload = slots_.slot(tag.slot);
      pool_.give_back(completion.wr_id);
    } else {
      payload = pool_.buffer(completion.wr_id);
      held_[tag.slot] = static_cast<uint32_t>(completion.wr_id);
    }
    deliver(tag.slot, payload, completion.byte_len);
    return true;
  }

  SlotArray slots_;
  ibv_cq* completions_ = nullptr;
  ReceivePool<OwnReceiveQueue> pool_;
  std::vector<uint32_t> held_;  // per slot: the receive whose buffer holds its message
  ChannelError error_;
};

// The receives of all connections of a responder: one shared receive queue, one completion queue
// ("patterns" 4.1, always so for requests by SEND). Looking at it costs the same however many
// connections there are.
class SharedInbox {
 public:
  SharedInbox() = default;
  SharedInbox(ibv_srq* queue, ibv_cq* completions, const ReceiveBuffers& buffers,
              const ReceivePoolSizes& sizes)
      : completions_(completions), pool_({queue}, buffers, sizes) {}

  int post_receives() { return pool_.post_all(); }

  // The next completion that was not taken, or null. It stays the next one until take().
  const ibv_wc* next() {
    if (next_ == count_) {
      next_ = 0;
      const int count = ibv_poll_cq(completions_, kPollBatch, batch_);
      count_ = count > 0 ? static_cast<uint32_t>(count) : 0;
      if (count < 0) [[unlikely]]
        error_ = ChannelError::poll_failed();
      if (count_ == 0) return nullptr;
    }
    return &batch_[next_];
  }
  // Its message was used: the receive goes back.
  void take() {
    VERBENA_DEBUG_ASSERT(next_ < count_);
    pool_.give_back(batch_[next_++].wr_id);
  }

  const char* buffer(const ibv_wc& completion) const { return pool_.buffer(completion.wr_id); }
  const ChannelError& error() const { return error_ ? error_ : pool_.error(); }

 private:
  ibv_cq* completions_ = nullptr;
  ReceivePool<SharedReceiveQueueRef> pool_;
  ibv_wc batch_[kPollBatch];
  uint32_t next_ = 0;
  uint32_t count_ = 0;
  ChannelError error_;
};

}  // namespace verbena::channel
