// The send queue of one queue pair, with selective signaling.
//
// Only every n-th work request asks for a completion ("patterns" 8). Work requests of one queue
// complete in order, so that completion also tells that the n - 1 before it are done, and frees
// their WQEs. The completion queue is polled only when the send queue is full: once in many
// messages.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

#include "src/base/assert.h"
#include "src/channel/channel_error.h"
#include "src/channel/post_list.h"

namespace verbena::channel {

struct SendQueueSizes {
  uint32_t depth_wrs = 1;
  uint32_t signal_interval = 1;  // at most depth_wrs, so that a full queue holds a signaled request
  uint32_t post_batch = 1;       // at most depth_wrs
  uint32_t requests_per_message = 1;
};

class SendQueue {
 public:
  SendQueue() = default;
  // `completions` belongs to this send queue alone and has room for depth_wrs.
  SendQueue(ibv_qp* queue_pair, ibv_cq* completions, const SendQueueSizes& sizes)
      : list_(queue_pair, sizes.post_batch),
        completions_(completions),
        depth_wrs_(sizes.depth_wrs),
        signal_interval_(sizes.signal_interval),
        requests_per_message_(sizes.requests_per_message),
        next_signaled_(sizes.signal_interval) {
    VERBENA_ASSERT(sizes.signal_interval >= 1 && sizes.signal_interval <= sizes.depth_wrs);
    VERBENA_ASSERT(sizes.post_batch >= 1 && sizes.post_batch <= sizes.depth_wrs);
    VERBENA_ASSERT(sizes.requests_per_message <= sizes.depth_wrs);
  }

  // Whether one more message fits. False is "would block", or an error: see error().
  bool has_room() {
    if (free_wrs() >= requests_per_message_) [[likely]]
      return true;
    return make_room();
  }
  // How many more messages fit.
  uint32_t room() { return has_room() ? free_wrs() / requests_per_message_ : 0; }

  // Posts `request`, or keeps it until the batch is full or flush() is called. Needs has_room().
  // The request and its gather list must stay as they are until then. False: see error().
  bool push(ibv_send_wr& request) {
    count(request);
    return note(list_.push(request));
  }
  // The same for a message of two.
  bool push(ibv_send_wr& first, ibv_send_wr& second) {
    count(first);
    count(second);
    return note(list_.push(first, second));
  }

  // Posts `request` in any case signaled: once retired() has reached what posted() is then, it and
  // all before it are done. Needs has_room(), and a post_batch of 1. False: see error().
  bool push_signaled(ibv_send_wr& request) {
    VERBENA_DEBUG_ASSERT(free_wrs() > 0);
    request.send_flags |= IBV_SEND_SIGNALED;
    request.wr_id = ++posted_;
    next_signaled_ = posted_ + signal_interval_;
    return note(list_.push(request));
  }
  // Work requests so far, and how many of them are known to be done, as of the last reap().
  uint64_t posted() const { return posted_; }
  uint64_t retired() const { return retired_; }

  // Posts what push() kept. False: see error().
  bool flush() { return note(list_.flush()); }

  // Takes completions, to free WQEs and to notice errors.
  void reap();

  const ChannelError& error() const { return error_; }

 private:
  uint32_t free_wrs() const {
    VERBENA_DEBUG_ASSERT(retired_ <= posted_ && posted_ - retired_ <= depth_wrs_);
    return depth_wrs_ - static_cast<uint32_t>(posted_ - retired_);
  }
  bool make_room();

  void count(ibv_send_wr& request) {
    VERBENA_DEBUG_ASSERT(free_wrs() > 0);
    if (++posted_ == next_signaled_) {
      request.send_flags |= IBV_SEND_SIGNALED;
      request.wr_id = posted_;
      next_signaled_ += signal_interval_;
    }
  }

  bool note(int post_error) {
    if (post_error == 0) [[likely]]
      return true;
    if (!error_) error_ = ChannelError::post_failed(post_error);
    return false;
  }

  PostList list_;
  ibv_cq* completions_ = nullptr;
  uint32_t depth_wrs_ = 0;
  uint32_t signal_interval_ = 1;
  uint32_t requests_per_message_ = 1;
  uint64_t posted_ = 0;   // work requests so far
  uint64_t retired_ = 0;  // of these, known to be done
  uint64_t next_signaled_ = 0;
  ChannelError error_;
};

}  // namespace verbena::channel
