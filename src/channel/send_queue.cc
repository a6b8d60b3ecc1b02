#include "src/channel/send_queue.h"

#include "verbena/data_path.h"

namespace verbena::channel {

void SendQueue::reap() {
  constexpr int kBatch = 8;
  ibv_wc completions[kBatch];
  int count = kBatch;
  while (count == kBatch && !error_) {
    count = poll_completions(completions_, kBatch, completions);
    if (count < 0) error_ = ChannelError::poll_failed();
    for (int i = 0; i < count; ++i) {
      if (completions[i].status == IBV_WC_SUCCESS) {
        VERBENA_DEBUG_ASSERT(completions[i].wr_id > retired_ && completions[i].wr_id <= posted_);
        retired_ = completions[i].wr_id;
      } else if (!error_) {
        // The first error is the cause; the requests behind it are only flushed.
        error_ = ChannelError::completed_with(completions[i].status);
      }
    }
  }
}

bool SendQueue::make_room() {
  if (!flush()) return false;
  reap();
  return free_wrs() >= requests_per_message_ && !error_;
}

}  // namespace verbena::channel
