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
// returned for those freed in a row. Where the oldest message has to wait, look_ahead() finds those
// behind it that need not.
//
// **Between two ends** only what was written is cleared (written_slots.h), and the head of each
// slot. The receiver clears once it has taken all that the sender before has numbered, whose WRITEs
// therefore are in the memory, and before it tells the next sender of the ring: so no WRITE of
// either meets the clearing. What that sender wrote into other slots, as none of these does, is no
// message then, since a slot is read once its head is of the lap. Its other bytes stay: one that
// lies in a tail's place can make a message of the next sender whole before its last bytes are
// there. A sender clears its own slots when the device has read the last of them. After a
// connection that broke, nobody knows what the sender has written: then all is cleared. That is
// not waited for where soft0's peer was stopped in the middle of a WRITE: if it goes on, the rest
// of this one reaches the ring, whoever has it then.
//
// A message may be gathered: its payload comes from the user's memory ("bufreuse" 3.1), and the
// slot has only what is around it. Then the sender does not know the payload that lies in the
// peer's slot, where a later and shorter message may have its tail. Such a message is preceded by a
// WRITE of a word that clears the place, which the queue pair keeps before it. Messages of one size
// do without: their tails lie in one place.
//
// The counts only rise, so an empty ring differs from a full one.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <vector>

#include "src/base/assert.h"
#include "src/channel/channel_error.h"
#include "src/channel/message_cost.h"
#include "src/channel/slot_array.h"
#include "src/channel/work_request.h"
#include "src/device/verbs_control.h"
#include "src/message/gather_request.h"
#include "src/message/ring_mark.h"
#include "src/message/written_slots.h"
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
  // `slots` are registered and zero, and so is a word at `zeros`. Control path; the ring is used
  // after bind().
  RingSender(const channel::SlotArray& slots, uint32_t lkey, const char* zeros)
      : slots_(slots), lkey_(lkey), zeros_(zeros), requests_(slots.count), unknown_(slots.count) {}

  // From now on the slots belong to those at `remote`, which are as many, of the same shape, and
  // zero. None of the messages before is on its way any more.
  void bind(const channel::RemoteSlots& remote, uint32_t inline_limit_bytes) {
    written_.clear(slots_, sent_);
    remote_ = remote;
    for (uint32_t slot = 0; slot < slots_.count; ++slot) {
      char* const local = slots_.slot(slot);
      channel::set_write(requests_[slot], reinterpret_cast<uint64_t>(local), lkey_,
                         remote_of(local), remote.rkey);
    }
    inline_limit_bytes_ = inline_limit_bytes;
    unknown_.assign(slots_.count, {});
    has_unknown_ = false;
    head_ = 0;
    ahead_ = kAhead % slots_.count;
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
  // Whether clear_tail() may find something to do.
  bool has_unknown() const { return has_unknown_; }
  // Before a message of `bytes`, once its bytes are in the slot: whether `clear` has to be posted
  // first.
  bool clear_tail(uint32_t bytes, channel::SlotRequest* clear) {
    VERBENA_DEBUG_ASSERT(credits() > 0);
    const uint32_t tail = RingMark::tail_offset(bytes);
    if (!unknown_[head_].has(tail)) return false;
    RingMark::clear_tail(slots_.slot(head_), bytes);
    const ibv_send_wr& slot = requests_[head_].request;
    channel::set_write(*clear, reinterpret_cast<uint64_t>(zeros_), lkey_,
                       slot.wr.rdma.remote_addr + tail, slot.wr.rdma.rkey);
    channel::set_size(*clear, channel::kWordBytes, inline_limit_bytes_);
    return true;
  }
  // A slot as it is sent: all that is written into the peer's.
  struct Sealed {
    uint32_t slot;
    uint32_t bytes;
  };
  // Sends `bytes` of it: by the work request(), or with write_now().
  Sealed seal(uint32_t bytes) {
    VERBENA_DEBUG_ASSERT(credits() > 0);
    const Sealed sealed{head_, RingMark::sealed_bytes(bytes)};
    RingMark::seal(slots_.slot(head_), slots_.shape, bytes, lap_);
    written_.add(bytes);
    if (has_unknown_) [[unlikely]]
      unknown_[head_].overwritten(sealed.bytes);
    advance();
    return sealed;
  }
  ibv_send_wr& request(const Sealed& sealed) {
    channel::SlotRequest& request = requests_[sealed.slot];
    channel::set_size(request, sealed.bytes, inline_limit_bytes_);
    return request.request;
  }
  // False: the device takes the request only.
  bool write_now(WriteNow write, ibv_qp* queue_pair, const Sealed& sealed) const {
    const char* const slot = slots_.slot(sealed.slot);
    return write(queue_pair, slot, sealed.bytes, remote_of(slot), remote_.rkey,
                 remote_of(slots_.slot(ahead_)));
  }
  // The same for a message of which the slot has the first `written` bytes, whole words, and the
  // rest lies elsewhere.
  void seal_gathered(uint32_t written, const GatheredBytes& rest, GatherRequest* request) {
    VERBENA_DEBUG_ASSERT(credits() > 0 && written % channel::kWordBytes == 0 &&
                         rest.size_bytes >= channel::kWordBytes);
    const uint32_t bytes = written + rest.size_bytes;
    char* const slot = slots_.slot(head_);
    // The last word is stored as a whole, with what it has of the payload.
    const uint32_t tail = RingMark::tail_offset(bytes);
    const uint32_t begin = RingMark::kPayloadOffset + written;
    const uint32_t gathered = tail - begin;
    copy_bytes(slot + tail, rest.bytes + gathered, rest.size_bytes - gathered);
    RingMark::seal(slot, slots_.shape, bytes, lap_);
    written_.add(bytes);
    request->begin(requests_[head_].request);
    request->add(slot, begin, lkey_);
    request->add(rest.bytes, gathered, rest.lkey);
    request->add(slot + tail, channel::kWordBytes, lkey_);
    unknown_[head_].gathered(begin, tail);
    has_unknown_ = true;
    advance();
  }

  // The peer returned so many. False: it returned more than it had.
  bool add_credits(uint32_t count) {
    if (count > in_use()) [[unlikely]]
      return false;
    freed_ += count;
    return true;
  }

 private:
  // The bytes of a peer's slot that are not those of the sender's: from `begin` on up to `end`, but
  // for the word at `known`.
  struct Unknown {
    uint32_t begin = 0;
    uint32_t end = 0;
    uint32_t known = 0;

    bool has(uint32_t word) const { return word >= begin && word < end && word != known; }
    void overwritten(uint32_t up_to) {
      if (up_to > begin) begin = up_to;
    }
    void gathered(uint32_t from, uint32_t tail) {
      if (begin >= end || tail > end) end = tail;
      begin = from;
      known = tail;
    }
  };

  static constexpr uint32_t kAhead = 3;  // slots from the head: its lines are asked for

  uint64_t remote_of(const char* local) const {
    return remote_.address + static_cast<uint64_t>(local - slots_.base);
  }
  void advance() {
    if (++head_ == slots_.count) {
      head_ = 0;
      lap_ = RingMark::lap_after(lap_);
    }
    if (++ahead_ == slots_.count) ahead_ = 0;
    ++sent_;
  }

  channel::SlotArray slots_;
  channel::RemoteSlots remote_;
  uint32_t lkey_ = 0;
  const char* zeros_ = nullptr;
  uint32_t inline_limit_bytes_ = 0;
  bool has_unknown_ = false;
  WrittenSlots written_;
  uint32_t head_ = 0;
  uint32_t ahead_ = 0;
  uint32_t lap_ = RingMark::kFirstLap;
  uint64_t sent_ = 0;
  uint64_t freed_ = 0;
  channel::SlotRequests requests_;
  std::vector<Unknown> unknown_;
};

class RingReceiver {
 public:
  struct Arrival {
    const char* payload = nullptr;  // null: nothing is there
    uint32_t bytes = 0;
    uint32_t slot = 0;
  };

  RingReceiver() = default;
  // `slots` are zero. Control path; the ring is used after begin().
  explicit RingReceiver(const channel::SlotArray& slots)
      : slots_(slots), head_at_(slots.base), freed_(slots.count), used_(slots.count) {}

  // Before a sender is told of the slots. No earlier one writes there any more, and none of its
  // messages is in use: all were taken, or break_off() was called.
  void begin() {
    VERBENA_ASSERT(in_use() == 0);
    written_.clear(slots_, head_ - begun_);
    for (uint32_t slot = 0; slot < slots_.count; ++slot) {
      clear_bytes(slots_.slot(slot), RingMark::kPayloadOffset);
    }
    head_slot_ = tail_slot_ = 0;
    head_at_ = slots_.base;
    ahead_slot_ = kPrefetched % slots_.count;
    clear_bytes(freed_.data(), freed_.size());
    clear_bytes(used_.data(), used_.size());
    lap_ = RingMark::kFirstLap;
    credits_ = 0;
    begun_ = looked_ = head_;
    error_ = {};
  }
  // The connection has ended: there may be messages that were not taken, and parts of some.
  void break_off() { written_.add_all(slots_); }
  // Whether a message has come since begin().
  bool was_used() const { return head_ != begun_; }

  // Whether next() finds nothing: cheaper than that.
  bool is_empty() const { return RingMark::is_empty(head_at_, lap_); }
  // The next message, which stays where it is until take(). Null payload: none, or see error().
  Arrival next() {
    const channel::Probe probe = RingMark::probe(head_at_, slots_.shape, lap_);
    if (probe.arrival == channel::Arrival::kMessage) [[likely]] {
      written_.add(probe.bytes);
      return {probe.payload, probe.bytes, head_slot_};
    }
    if (probe.arrival == channel::Arrival::kViolation) [[unlikely]] {
      error_ = bad_mark();
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
    // Even if it was not asked: the peer can change a message that was used early.
    used_[head_slot_] = 0;
    head_at_ += slots_.shape.slot_bytes;
    if (++head_slot_ == slots_.count) [[unlikely]] {
      head_slot_ = 0;
      head_at_ = slots_.base;
      lap_ = RingMark::lap_after(lap_);
    }
    ++head_;
    // Lines that another core or a device wrote take long to come: those of messages that are there
    // already come together. What is not written yet is here since the lap before.
    __builtin_prefetch(slots_.slot(ahead_slot_));
    ahead_slot_ = behind(ahead_slot_);
    return true;
  }

  // While the message of next() has to wait: this one and those behind it, each once. Null payload:
  // no more, or see error().
  Arrival look_ahead() {
    if (looked_ < head_) looked_ = head_;
    const auto distance = static_cast<uint32_t>(looked_ - head_);
    // The sender has no credits for more.
    if (in_use() + distance >= slots_.count) return {};
    uint32_t slot = head_slot_ + distance;
    uint32_t lap = lap_;
    if (slot >= slots_.count) {
      slot -= slots_.count;
      lap = RingMark::lap_after(lap);
    }
    const channel::Probe probe = RingMark::probe(slots_.slot(slot), slots_.shape, lap);
    if (probe.arrival == channel::Arrival::kViolation) [[unlikely]]
      error_ = bad_mark();
    if (probe.arrival != channel::Arrival::kMessage) return {};
    ++looked_;
    return {probe.payload, probe.bytes, slot};
  }
  // A message of look_ahead() was used; it is taken and released in its turn nevertheless.
  void use_early(uint32_t slot) {
    VERBENA_DEBUG_ASSERT(slot < slots_.count && used_[slot] == 0);
    used_[slot] = 1;
  }
  // Whether it was: asked when its turn has come, before take().
  bool was_used_early(uint32_t slot) const {
    VERBENA_DEBUG_ASSERT(slot == head_slot_);
    return used_[slot] != 0;
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

  static channel::ChannelError bad_mark() {
    return channel::ChannelError::peer_violated(
        "its completion mark is not one that a sender makes");
  }
  uint32_t behind(uint32_t slot) const { return slot + 1 == slots_.count ? 0 : slot + 1; }

  channel::SlotArray slots_;
  const char* head_at_ = nullptr;  // the slot at the head
  uint32_t head_slot_ = 0;         // its number
  uint32_t tail_slot_ = 0;
  uint32_t ahead_slot_ = 0;             // that is prefetched next
  uint32_t lap_ = RingMark::kFirstLap;  // of the head
  uint64_t head_ = 0;
  uint64_t tail_ = 0;
  uint64_t begun_ = 0;   // the head at begin()
  uint64_t looked_ = 0;  // how far look_ahead() has come
  uint32_t credits_ = 0;
  WrittenSlots written_;
  std::vector<uint8_t> freed_;  // per slot: free, but one before it is not
  std::vector<uint8_t> used_;   // per slot: before its turn
  channel::ChannelError error_;
};

}  // namespace verbena::message
