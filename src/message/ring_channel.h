// The RDMA channel of "mpiiba" 4.1 to 4.4: one direction, a ring of slots that the sender WRITEs
// and the receiver polls.
//
//   sender:    freed .. sent        a slot is used again once the receiver has returned its credit
//   receiver:  tail .. head         head: where the next one comes; tail: the oldest slot in use
//
// Slot i of the sender belongs to slot i of the receiver for as long as the ring has these two
// ends, and both are zero when that begins: so a message needs no address, its work request is
// filled in once, and the sender knows what lies where the tail flag goes (ring_mark.h). Slots are
// used in turn, so the receiver polls one place. It may free them in any order; credits are
// returned for those freed in a row.
//
// The counts only rise, so an empty ring differs from a full one.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "src/base/assert.h"
#include "src/channel/channel_error.h"
#include "src/channel/message_cost.h"
#include "src/channel/slot_array.h"
#include "src/channel/work_request.h"
#include "src/message/ring_mark.h"
#include "verbena/data_path.h"

namespace verbena::message {

// What a message of `bytes` costs; pure.
inline channel::MessageCost ring_message_cost(uint32_t bytes, const channel::CostInputs& inputs) {
  channel::MessageCost cost = channel::sending_cost(RingMark::sealed_bytes(bytes), inputs);
  cost.receiver.polled_lines = 1;
  return cost;
}

class RingSender {
 public:
  RingSender() = default;
  // `slots` are registered. Control path; the ring is used after bind().
  RingSender(const channel::SlotArray& slots, uint32_t lkey)
      : slots_(slots), lkey_(lkey), requests_(slots.count) {}

  // From now on the slots belong to those at `remote`, which are as many, of the same shape, and
  // zero. None of the messages before is on its way any more.
  void bind(const channel::RemoteSlots& remote, uint32_t inline_limit_bytes) {
    clear_bytes(slots_.base, slots_.size_bytes());
    for (uint32_t slot = 0; slot < slots_.count; ++slot) {
      char* const local = slots_.slot(slot);
      channel::set_write(requests_[slot], reinterpret_cast<uint64_t>(local), lkey_,
                         remote.address + static_cast<uint64_t>(local - slots_.base), remote.rkey);
    }
    inline_limit_bytes_ = inline_limit_bytes;
    head_ = 0;
    lap_ = RingMark::kFirstLap;
    sent_ = freed_ = 0;
  }

  // Messages that may be sent now.
  uint32_t credits() const { return slots_.count - in_use(); }
  // Of the messages so far, those whose credit has not come back.
  uint32_t in_use() const { return static_cast<uint32_t>(sent_ - freed_); }
  // Whether the peer can have so many credits.
  bool may_return(uint32_t count) const { return count <= in_use(); }
  const channel::SlotArray& slots() const { return slots_; }

  // Where the next message is written; needs a credit. Whoever writes there writes no further than
  // the size that is sent.
  char* payload() const {
    VERBENA_DEBUG_ASSERT(credits() > 0);
    return slots_.slot(head_) + RingMark::kPayloadOffset;
  }
  // The work request that sends `bytes` of it.
  ibv_send_wr& seal(uint32_t bytes) {
    VERBENA_DEBUG_ASSERT(credits() > 0);
    channel::SlotRequest& request = requests_[head_];
    RingMark::seal(slots_.slot(head_), slots_.shape, bytes, lap_);
    channel::set_size(request, RingMark::sealed_bytes(bytes), inline_limit_bytes_);
    if (++head_ == slots_.count) {
      head_ = 0;
      lap_ = RingMark::lap_after(lap_);
    }
    ++sent_;
    return request.request;
  }

  // The peer returned so many. False: it returned more than it had.
  bool add_credits(uint32_t count) {
    if (count > in_use()) [[unlikely]]
      return false;
    freed_ += count;
    return true;
  }

 private:
  channel::SlotArray slots_;
  uint32_t lkey_ = 0;
  uint32_t inline_limit_bytes_ = 0;
  uint32_t head_ = 0;
  uint32_t lap_ = RingMark::kFirstLap;
  uint64_t sent_ = 0;
  uint64_t freed_ = 0;
  channel::SlotRequests requests_;
};

class RingReceiver {
 public:
  struct Arrival {
    const char* payload = nullptr;  // null: nothing is there
    uint32_t bytes = 0;
    uint32_t slot = 0;
  };

  RingReceiver() = default;
  // Control path; the ring is used after begin().
  explicit RingReceiver(const channel::SlotArray& slots) : slots_(slots), freed_(slots.count) {}

  // Before a sender is told of the slots. No earlier one writes there any more, and none of its
  // messages is in use.
  void begin() {
    VERBENA_ASSERT(in_use() == 0);
    clear_bytes(slots_.base, slots_.size_bytes());
    head_slot_ = tail_slot_ = 0;
    ahead_slot_ = kPrefetched % slots_.count;
    clear_bytes(freed_.data(), freed_.size());
    lap_ = RingMark::kFirstLap;
    credits_ = 0;
    error_ = {};
  }

  // Whether next() finds nothing: cheaper than that.
  bool is_empty() const { return RingMark::is_empty(slots_.slot(head_slot_), lap_); }
  // The next message, which stays where it is until take(). Null payload: none, or see error().
  Arrival next() {
    const channel::Probe probe = RingMark::probe(slots_.slot(head_slot_), slots_.shape, lap_);
    if (probe.arrival == channel::Arrival::kMessage) [[likely]]
      return {probe.payload, probe.bytes, head_slot_};
    if (probe.arrival == channel::Arrival::kViolation) [[unlikely]] {
      error_ = channel::ChannelError::peer_violated(
          "its completion mark is not one that a sender makes");
    }
    return {};
  }
  // The message of next() was seen; its bytes stay until release(). False: the peer wrote into a
  // slot that it has no credit for; see error().
  bool take() {
    if (in_use() == slots_.count) [[unlikely]] {
      error_ = channel::ChannelError::peer_violated("it wrote a message without a credit");
      return false;
    }
    head_slot_ = behind(head_slot_);
    if (head_slot_ == 0) lap_ = RingMark::lap_after(lap_);
    ++head_;
    // Lines that another core or a device wrote take long to come: those of messages that are there
    // already come together. What is not written yet is here since the lap before.
    __builtin_prefetch(slots_.slot(ahead_slot_));
    ahead_slot_ = behind(ahead_slot_);
    return true;
  }

  // A message was used. Credits come back for the oldest slots, as far as all of them are free.
  void release(uint32_t slot) {
    VERBENA_DEBUG_ASSERT(slot < slots_.count && freed_[slot] == 0 && tail_ != head_);
    if (slot != tail_slot_) {
      freed_[slot] = 1;
      return;
    }
    for (;;) {
      tail_slot_ = behind(tail_slot_);
      ++tail_;
      ++credits_;
      if (tail_ == head_ || freed_[tail_slot_] == 0) break;
      freed_[tail_slot_] = 0;
    }
    VERBENA_DEBUG_ASSERT(credits_ <= slots_.count);
  }
  uint32_t in_use() const { return static_cast<uint32_t>(head_ - tail_); }

  // Credits that wait to be returned, and at most so many of them to return now.
  uint32_t credits() const { return credits_; }
  uint32_t take_credits(uint32_t most) {
    const uint32_t taken = credits_ < most ? credits_ : most;
    credits_ -= taken;
    return taken;
  }
  const channel::SlotArray& slots() const { return slots_; }
  const channel::ChannelError& error() const { return error_; }

 private:
  static constexpr uint32_t kPrefetched = 4;  // slots ahead of the head

  uint32_t behind(uint32_t slot) const { return slot + 1 == slots_.count ? 0 : slot + 1; }

  channel::SlotArray slots_;
  uint32_t head_slot_ = 0;
  uint32_t tail_slot_ = 0;
  uint32_t ahead_slot_ = 0;             // that is prefetched next
  uint32_t lap_ = RingMark::kFirstLap;  // of the head
  uint64_t head_ = 0;
  uint64_t tail_ = 0;
  uint32_t credits_ = 0;
  std::vector<uint8_t> freed_;  // per slot: free, but one before it is not
  channel::ChannelError error_;
};

}  // namespace verbena::message
