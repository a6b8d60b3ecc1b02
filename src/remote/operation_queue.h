// One-sided operations on their way: a ring of them on one queue pair, whose completions come in
// order. Data path.
//
//   posted: head .. completed .. tail        head: taken by the user
//           |- done -|- on the way -|
//
// An operation has one work request or several, of which the last one may be signaled: then its
// completion tells of all operations before it, too ("patterns" 8). The ring bounds what is posted,
// so the send queue, which has room for the whole ring, never overflows.
//
// Beside the ring there is one operation that its poster waits for (commit_alone()): it is the last
// one while it is on its way, and leaves nothing behind.
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "src/base/assert.h"
#include "src/channel/channel_error.h"

namespace verbena::remote {

struct OperationQueueSizes {
  uint32_t pending = 1;
  uint32_t signal_interval = 1;  // at most pending
  uint32_t post_batch = 1;       // operations of a list
  uint32_t max_entries = 1;      // work requests or gather entries of an operation
};

struct Operation {
  uint64_t token = 0;
  const char* bytes = nullptr;  // where its result lies
  uint32_t size_bytes = 0;
  // Where the CPU copies what was read, piece by piece.
  std::span<const ibv_sge> scatter = {};
};

class OperationQueue {
 public:
  OperationQueue() = default;
  OperationQueue(ibv_qp* queue_pair, ibv_cq* completions, const OperationQueueSizes& sizes)
      : queue_pair_(queue_pair),
        completions_(completions),
        pending_(sizes.pending),
        signal_interval_(sizes.signal_interval),
        post_batch_(sizes.post_batch),
        ring_(ring_size(sizes.pending)),
        // One more: who waits for an operation may find a list that is not full.
        requests_((sizes.post_batch + 1) * sizes.max_entries),
        pieces_(requests_.size()) {
    VERBENA_ASSERT(pending_ >= 1 && post_batch_ >= 1 && sizes.max_entries >= 1);
    VERBENA_ASSERT(signal_interval_ >= 1 && signal_interval_ <= pending_);
  }

  // Operations have so many places, which come again in the same order.
  static uint32_t ring_size(uint32_t pending) { return std::bit_ceil(pending); }
  // Work requests that may be in the send queue at once.
  static uint32_t depth_wrs(const OperationQueueSizes& sizes) {
    // The ring's, the one that is waited for, and the one of ask().
    return (sizes.pending + 1) * sizes.max_entries + 1;
  }

  bool has_room() const { return tail_ - head_ < pending_; }
  uint32_t outstanding() const { return static_cast<uint32_t>(tail_ - head_); }
  // The place of the operation that is posted next.
  uint32_t next_place() const { return static_cast<uint32_t>(tail_ & (ring_.size() - 1)); }

  // Adds a work request to the operation that commit() ends, with `pieces` gather entries, which
  // the caller fills in with its addresses.
  ibv_send_wr& add(ibv_wr_opcode opcode, unsigned flags, uint32_t pieces) {
    VERBENA_DEBUG_ASSERT(request_count_ < requests_.size());
    VERBENA_DEBUG_ASSERT(piece_count_ + pieces <= pieces_.size());
    ibv_send_wr& request = requests_[request_count_++];
    request.wr_id = tail_ + 1;
    request.next = request_count_ < requests_.size() ? &requests_[request_count_] : nullptr;
    request.sg_list = pieces_.data() + piece_count_;
    request.num_sge = static_cast<int>(pieces);
    request.opcode = opcode;
    request.send_flags = flags;
    piece_count_ += pieces;
    return request;
  }

  // Posts the operation, or keeps it until its list is full. Needs has_room(). False: see error().
  bool commit(const Operation& operation) {
    VERBENA_DEBUG_ASSERT(has_room() && request_count_ > 0);
    ring_[next_place()] = operation;
    ++tail_;
    if (tail_ - signaled_ >= signal_interval_) sign_last();
    return ++kept_ < post_batch_ || flush();
  }
  // Posts it at once, to be waited for: the caller calls reap() until alone_is_done(), and only
  // then uses the queue for anything else.
  bool commit_alone() {
    VERBENA_DEBUG_ASSERT(request_count_ > 0);
    requests_[request_count_ - 1].send_flags |= IBV_SEND_SIGNALED;
    return flush();
  }
  bool alone_is_done() {
    if (completed_ <= tail_) return false;
    signaled_ = completed_ = tail_;
    return true;
  }

  // Posts what commit() kept. False: see error().
  bool flush() {
    if (request_count_ == 0) return true;
    requests_[request_count_ - 1].next = nullptr;
    request_count_ = piece_count_ = kept_ = 0;
    ++doorbells_;
    ibv_send_wr* rejected = nullptr;
    const int error = ibv_post_send(queue_pair_, requests_.data(), &rejected);
    if (error == 0) [[likely]]
      return true;
    if (!error_) error_ = channel::ChannelError::post_failed(error);
    return false;
  }

  // Takes completions. False: see error().
  bool reap();
  // Operations that are done and not taken.
  uint32_t done() const { return static_cast<uint32_t>(std::min(completed_, tail_) - head_); }
  const Operation& take() {
    VERBENA_DEBUG_ASSERT(done() > 0);
    return ring_[head_++ & (ring_.size() - 1)];
  }

  // Whether something is on its way, and nothing of it asks for a completion.
  bool is_silent() const { return signaled_ <= completed_ && completed_ < tail_; }
  // Asks for the completion of what was posted last, by a READ of nothing at `address`: at the end
  // of a run. False: see error().
  bool ask(uint64_t address, uint32_t rkey);

  uint64_t doorbells() const { return doorbells_; }
  const channel::ChannelError& error() const { return error_; }

 private:
  void sign_last() {
    requests_[request_count_ - 1].send_flags |= IBV_SEND_SIGNALED;
    signaled_ = tail_;
  }

  ibv_qp* queue_pair_ = nullptr;
  ibv_cq* completions_ = nullptr;
  uint32_t pending_ = 1;
  uint32_t signal_interval_ = 1;
  uint32_t post_batch_ = 1;
  // Counts of operations so far.
  uint64_t head_ = 0;       // taken
  uint64_t completed_ = 0;  // known to be done
  uint64_t signaled_ = 0;   // the last one that asks for a completion
  uint64_t tail_ = 0;       // posted
  std::vector<Operation> ring_;
  // The list that is put together.
  std::vector<ibv_send_wr> requests_;
  std::vector<ibv_sge> pieces_;
  uint32_t request_count_ = 0;
  uint32_t piece_count_ = 0;
  uint32_t kept_ = 0;  // its operations
  uint64_t doorbells_ = 0;
  channel::ChannelError error_;
};

}  // namespace verbena::remote
