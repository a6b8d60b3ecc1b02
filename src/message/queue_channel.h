// The SEND/RECV channel of "mpiiba" 3.1: one shared receive queue and one completion queue for all
// peers, and credits for each.
//
// A connection brings the receives that its sender's credits stand for, so no message ever waits
// for a receive. Their buffers belong to all connections from then on, and stay when one ends, for
// the next one: a receive that is posted cannot be taken back.
#pragma once

#include <arpa/inet.h>
#include <infiniband/verbs.h>

#include <cstdint>

#include "src/base/assert.h"
#include "src/channel/channel_error.h"
#include "src/channel/completion_batch.h"
#include "src/channel/message_cost.h"
#include "src/channel/slot_array.h"
#include "src/channel/work_request.h"
#include "src/message/gather_request.h"
#include "src/message/zeroed_array.h"

namespace verbena::message {

// What a message of `bytes` costs; pure.
inline channel::MessageCost queue_message_cost(uint32_t bytes, const channel::CostInputs& inputs) {
  channel::MessageCost cost = channel::sending_cost(bytes, inputs);
  cost.receiver = channel::receive_cost();
  return cost;
}

// Messages on their way to one peer. Buffers are used in turn: a credit that comes back tells that
// the oldest message has arrived, whichever was freed there, since messages arrive in order.
class QueueSender {
 public:
  QueueSender() = default;
  // A buffer for each credit. `immediate` is what the receiver calls this connection.
  QueueSender(const channel::SlotArray& buffers, uint32_t lkey, uint32_t immediate,
              uint32_t inline_limit_bytes)
      : buffers_(buffers),
        inline_limit_bytes_(inline_limit_bytes),
        credits_(buffers.count),
        requests_(buffers.count) {
    for (uint32_t number = 0; number < buffers.count; ++number) {
      channel::set_send(requests_[number], reinterpret_cast<uint64_t>(buffers.slot(number)), lkey,
                        immediate);
    }
  }

  uint32_t credits() const { return credits_; }
  // Whether the peer can have so many of them.
  bool may_return(uint32_t count) const { return count <= buffers_.count - credits_; }
  // Where the next message is written; needs a credit.
  char* payload() const {
    VERBENA_DEBUG_ASSERT(credits_ > 0);
    return buffers_.slot(next_);
  }
  // The work request that sends `bytes` of it.
  ibv_send_wr& seal(uint32_t bytes) {
    VERBENA_DEBUG_ASSERT(credits_ > 0 && bytes > 0 && bytes <= buffers_.shape.capacity_bytes);
    channel::SlotRequest& request = requests_[next_];
    channel::set_size(request, bytes, inline_limit_bytes_);
    advance();
    return request.request;
  }
  // The same for a message of which the buffer has the first `written` bytes, and the rest lies
  // elsewhere.
  void seal_gathered(uint32_t written, const GatheredBytes& rest, GatherRequest* request) {
    VERBENA_DEBUG_ASSERT(credits_ > 0 && written > 0 && rest.size_bytes > 0 &&
                         written + rest.size_bytes <= buffers_.shape.capacity_bytes);
    const channel::SlotRequest& usual = requests_[next_];
    request->begin(usual.request);
    request->add(buffers_.slot(next_), written, usual.payload.lkey);
    request->add(rest.bytes, rest.size_bytes, rest.lkey);
    advance();
  }
  // The peer returned so many. False: it returned more than it had.
  bool add_credits(uint32_t count) {
    if (count > buffers_.count - credits_) [[unlikely]]
      return false;
    credits_ += count;
    return true;
  }

 private:
  void advance() {
    next_ = next_ + 1 == buffers_.count ? 0 : next_ + 1;
    --credits_;
  }

  channel::SlotArray buffers_;
  uint32_t inline_limit_bytes_ = 0;
  uint32_t credits_ = 0;
  uint32_t next_ = 0;
  channel::SlotRequests requests_;
};

// What a receiver owes the sender of one connection.
class QueueCredits {
 public:
  QueueCredits() = default;
  explicit QueueCredits(uint32_t count) : count_(count) {}

  // A message that takes a credit has come. False: the peer had none.
  bool take() {
    if (in_use_ + credits() == count_) [[unlikely]]
      return false;
    ++in_use_;
    return true;
  }
  // It was used, and its receive given back.
  void release() {
    VERBENA_DEBUG_ASSERT(in_use_ > 0);
    --in_use_;
    ++credits_;
  }
  // The same for a message that was used when it came. Its sender may need this credit to free what
  // others wait for: it does not travel in a message that may have to wait itself.
  void release_at_once() {
    VERBENA_DEBUG_ASSERT(in_use_ > 0);
    --in_use_;
    ++urgent_;
  }
  uint32_t in_use() const { return in_use_; }
  // Credits that wait to be returned, the urgent ones of these, and at most so many of them to
  // return now, by a message that may have to wait or by one that is used when it comes.
  uint32_t credits() const { return credits_ + urgent_; }
  uint32_t urgent() const { return urgent_; }
  uint32_t take_credits(uint32_t most) { return take_from(credits_, most); }
  uint32_t take_all_credits(uint32_t most) {
    const uint32_t urgent = take_from(urgent_, most);
    return urgent + take_from(credits_, most - urgent);
  }

 private:
  static uint32_t take_from(uint32_t& credits, uint32_t most) {
    const uint32_t taken = credits < most ? credits : most;
    credits -= taken;
    return taken;
  }

  uint32_t count_ = 0;
  uint32_t in_use_ = 0;
  uint32_t credits_ = 0;
  uint32_t urgent_ = 0;
};

class SharedReceives {
 public:
  struct Arrival {
    const char* payload = nullptr;
    uint32_t bytes = 0;
    uint32_t connection = 0;         // as the peer says; its queue pair tells whether it is so
    uint32_t queue_pair_number = 0;  // on this side
    uint32_t receive = 0;            // to give back
  };

  SharedReceives() = default;
  SharedReceives(ibv_srq* queue, ibv_cq* completions, uint32_t max_receives, uint32_t buffer_bytes)
      : queue_(queue), batch_(completions), buffer_bytes_(buffer_bytes), receives_(max_receives) {}

  uint32_t room() const { return static_cast<uint32_t>(receives_.size()) - count_; }
  uint32_t size() const { return count_; }
  // Posts `count` more receives, with registered buffers one behind the other. 0, or an errno
  // value.
  int add(char* base, uint32_t stride_bytes, uint32_t lkey, uint32_t count) {
    VERBENA_ASSERT(count <= room() && stride_bytes >= buffer_bytes_);
    for (uint32_t i = 0; i < count; ++i) {
      Receive& receive = receives_[count_];
      receive.entry = {.addr = reinterpret_cast<uint64_t>(base + uint64_t{i} * stride_bytes),
                       .length = buffer_bytes_,
                       .lkey = lkey};
      receive.request = {.wr_id = count_, .next = nullptr, .sg_list = &receive.entry, .num_sge = 1};
      ++count_;
      give_back(count_ - 1);
    }
    flush();
    return error_.error;
  }

  // The next message, or null payload: none, or see error(). It is taken at once; its receive stays
  // until give_back().
  Arrival take() {
    while (const ibv_wc* const completion = batch_.next()) {
      const ibv_wc found = *completion;
      batch_.take();
      if (found.wr_id >= count_) [[unlikely]] {
        error_ = channel::ChannelError::poll_failed();
        return {};
      }
      const auto receive = static_cast<uint32_t>(found.wr_id);
      if (found.status != IBV_WC_SUCCESS) [[unlikely]] {
        // Of a queue pair that broke, which its owner sees by its send queue.
        give_back(receive);
        continue;
      }
      Arrival arrival;
      arrival.payload = buffer(receive);
      // Anything else than a SEND with an immediate is nobody's message.
      const bool is_message =
          found.opcode == IBV_WC_RECV && (found.wc_flags & IBV_WC_WITH_IMM) != 0;
      arrival.connection = is_message ? ntohl(found.imm_data) : ~0u;
      arrival.bytes = found.byte_len <= buffer_bytes_ ? found.byte_len : 0;
      arrival.queue_pair_number = found.qp_num;
      arrival.receive = receive;
      return arrival;
    }
    if (batch_.failed() && !error_) error_ = channel::ChannelError::poll_failed();
    return {};
  }

  const char* buffer(uint32_t receive) const {
    VERBENA_DEBUG_ASSERT(receive < count_);
    return reinterpret_cast<const char*>(receives_[receive].entry.addr);
  }
  // The receive is posted again, with others.
  void give_back(uint32_t receive) {
    VERBENA_DEBUG_ASSERT(receive < count_);
    receives_[receive].request.next = first_;
    first_ = &receives_[receive].request;
    if (++waiting_ >= kRepostBatch) flush();
  }
  // Posts those that give_back() kept. For who finds no more messages.
  void flush() {
    if (first_ == nullptr) return;
    ibv_recv_wr* rejected = nullptr;
    const int error = ibv_post_srq_recv(queue_, first_, &rejected);
    first_ = nullptr;
    waiting_ = 0;
    if (error != 0 && !error_) error_ = channel::ChannelError::post_failed(error);
  }

  const channel::ChannelError& error() const { return error_; }

 private:
  static constexpr uint32_t kRepostBatch = 4;

  struct Receive {
    ibv_recv_wr request;
    ibv_sge entry;
  };

  ibv_srq* queue_ = nullptr;
  channel::CompletionBatch batch_;
  uint32_t buffer_bytes_ = 0;
  uint32_t count_ = 0;
  ZeroedArray<Receive> receives_;
  ibv_recv_wr* first_ = nullptr;
  uint32_t waiting_ = 0;
  channel::ChannelError error_;
};

}  // namespace verbena::message
