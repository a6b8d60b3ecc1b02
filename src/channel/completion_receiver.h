// The receiving end of channels whose messages consume a receive: SEND and WRITE_WITH_IMM.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "src/channel/channel.h"
#include "src/channel/completion_batch.h"
#include "src/channel/receive_pool.h"

namespace verbena::channel {

// Checks a receive's completion against what a well-behaved peer causes. Null, or what it did.
inline const char* receive_violation(const ibv_wc& completion, ibv_wc_opcode expected,
                                     uint32_t capacity_bytes) {
  if (completion.opcode != expected || (completion.wc_flags & IBV_WC_WITH_IMM) == 0) {
    return "it sent with another verb than agreed";
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
        batch_(setup.receive_completions),
        pool_({setup.queue_pair}, setup.buffers, setup.receives),
        held_(kPayloadInSlots ? 0 : setup.slots.count, kNone) {}

  int post_receives() { return pool_.post_all(); }

  template <EligibleFunction Eligible, DeliverFunction Deliver>
  uint32_t poll(uint32_t limit, Eligible&& eligible, Deliver&& deliver) {
    uint32_t found = 0;
    while (found < limit) {
      const ibv_wc* completion = batch_.next();
      if (completion == nullptr) break;
      // Before it is delivered: whoever gets it may poll, too.
      batch_.take();
      if (!take(*completion, eligible, deliver)) [[unlikely]]
        break;
      ++found;
    }
    if (batch_.failed() && !error_) [[unlikely]]
      error_ = ChannelError::poll_failed();
    return found;
  }

  // The completion queue where arrivals can be waited for, and whether one is there already.
  ibv_cq* completions() const { return batch_.queue(); }
  bool has_arrival() { return batch_.next() != nullptr; }

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
    const MessageImmediate immediate = MessageImmediate::from_completion(completion);
    if (violation == nullptr && (immediate.slot >= slots_.count || !eligible(immediate.slot))) {
      violation = "its message names a slot without a pending request";
    }
    if (violation != nullptr) [[unlikely]] {
      error_ = ChannelError::peer_violated(violation);
      return false;
    }
    const char* payload;
    if constexpr (kPayloadInSlots) {
      payload = slots_.slot(immediate.slot);
      pool_.give_back(completion.wr_id);
    } else {
      payload = pool_.buffer(completion.wr_id);
      held_[immediate.slot] = static_cast<uint32_t>(completion.wr_id);
    }
    deliver(immediate.slot, payload, completion.byte_len);
    return true;
  }

  SlotArray slots_;
  CompletionBatch batch_;
  ReceivePool<OwnReceiveQueue> pool_;
  std::vector<uint32_t> held_;  // per slot: the receive whose buffer holds its message
  ChannelError error_;
};

// The receives of all connections of a responder: one shared receive queue, one completion queue
// ("patterns" 4.1, always so for requests by SEND). A poll of it costs the same however many
// connections there are.
class SharedInbox {
 public:
  SharedInbox() = default;
  SharedInbox(ibv_srq* queue, ibv_cq* completions, const ReceiveBuffers& buffers,
              const ReceivePoolSizes& sizes)
      : batch_(completions), pool_({queue}, buffers, sizes) {}

  int post_receives() { return pool_.post_all(); }

  // The next completion that was not taken, or null. It stays the next one until take().
  const ibv_wc* next() { return batch_.next(); }
  // Its message was used: the receive goes back.
  void take() {
    const uint64_t receive = batch_.current().wr_id;
    batch_.take();
    pool_.give_back(receive);
  }
  // It stays where it is for now; give_back() follows.
  void take_and_keep() { batch_.take(); }
  void give_back(const ibv_wc& completion) { pool_.give_back(completion.wr_id); }
  ibv_cq* completions() const { return batch_.queue(); }

  const char* buffer(const ibv_wc& completion) const { return pool_.buffer(completion.wr_id); }
  ChannelError error() const {
    return batch_.failed() ? ChannelError::poll_failed() : pool_.error();
  }

 private:
  CompletionBatch batch_;
  ReceivePool<SharedReceiveQueueRef> pool_;
};

}  // namespace verbena::channel
