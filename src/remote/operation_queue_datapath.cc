#include "src/remote/operation_queue.h"
#include "verbena/data_path.h"

namespace verbena::remote {

bool OperationQueue::reap() {
  constexpr int kAtOnce = 16;
  ibv_wc completions[kAtOnce];
  const int count = poll_completions(completions_, kAtOnce, completions);
  if (count < 0) [[unlikely]] {
    if (!error_) error_ = channel::ChannelError::poll_failed();
    return false;
  }
  for (int i = 0; i < count; ++i) {
    if (completions[i].status != IBV_WC_SUCCESS) [[unlikely]] {
      // The first error is the cause; the requests behind it are only flushed.
      if (!error_) error_ = channel::ChannelError::completed_with(completions[i].status);
      return false;
    }
    VERBENA_DEBUG_ASSERT(completions[i].wr_id >= completed_ && completions[i].wr_id <= tail_ + 1);
    completed_ = completions[i].wr_id;
  }
  return true;
}

bool OperationQueue::ask(uint64_t address, uint32_t rkey) {
  VERBENA_DEBUG_ASSERT(is_silent() && request_count_ == 0);
  ibv_send_wr& request = add(IBV_WR_RDMA_READ, IBV_SEND_SIGNALED, 0);
  request.wr_id = tail_;
  request.wr.rdma.remote_addr = address;
  request.wr.rdma.rkey = rkey;
  signaled_ = tail_;
  return flush();
}

}  // namespace verbena::remote
