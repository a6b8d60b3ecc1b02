#include "src/connect/event_wait.h"

#include <algorithm>
#include <utility>

namespace verbena::connect {

Status EventWait::enable(const Device& device) {
  VERBENA_ASSIGN_OR_RETURN(CompletionChannel channel, CompletionChannel::create(device));
  channel_ = std::make_unique<CompletionChannel>(std::move(channel));
  return Status::ok_status();
}

void EventWait::sleep_for(int64_t timeout_ns) {
  constexpr int64_t kSliceNs = 10'000'000;
  const int64_t slice_ns = timeout_ns < 0 ? kSliceNs : std::min(timeout_ns, kSliceNs);
  // A time-out, or a queue that is armed no longer: both mean to poll again.
  static_cast<void>(channel_->wait(slice_ns));
}

}  // namespace verbena::connect
