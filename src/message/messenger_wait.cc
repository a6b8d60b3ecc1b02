// How a messenger sleeps. Rings wake nobody, so their senders are asked to leave them; what comes
// by the SEND/RECV channel then raises an event of the completion queue, which is armed before it
// is polled for the last time.
#include <algorithm>

#include "src/base/runtime.h"
#include "src/connect/event_wait.h"
#include "src/message/messenger_state.h"

namespace verbena::message {
namespace {

// While something may come that wakes nobody.
constexpr uint64_t kShortSleepNs = 1'000'000;

}  // namespace

// Whether nothing can come without an event, and nothing waits for a credit.
bool MessengerState::everything_wakes() const {
  if (!busy_.empty()) return false;
  for (uint32_t i = 0; i < polling_.size(); ++i) {
    if (!connections_[polling_.at(i)]->ring_in_left) return false;
  }
  return true;
}

bool MessengerState::prepare_to_sleep() {
  if (place_ == nullptr) return false;
  place_->begin();
  const auto something_came = [this] {
    rounds_without_queue_ = kRoundsOfRings;  // the completion queue is polled, too
    const uint32_t before = operation_numbers_.in_use();
    const uint32_t found = progress();
    return found > 0 || completion_count_ > 0 || operation_numbers_.in_use() != before;
  };
  if (!polling_.is_resting()) reconsider_polling_ = true;
  polling_.rest();
  // The completions of own READs and moves are no events.
  if (something_came() || move_numbers_.in_use() > 0) return false;
  // A message that waits for a ring's credits is to go by SEND soon, and nothing wakes its sender:
  // who has to try it once more when that time is over.
  if (ring_patience_end_ns_ != 0) {
    if (now_ns() >= ring_patience_end_ns_) ring_patience_end_ns_ = 0;
    return false;
  }
  for (const PeerConnection* const connection : busy_) {
    if (connection->first_gathered != 0) return false;
    for (uint32_t at = connection->first_transfer; at != 0; at = transfers_[at - 1].next) {
      if (transfers_[at - 1].stage == Transfer::Stage::kReading) return false;
    }
    for (uint32_t at = connection->first_outgoing; at != 0; at = outgoing_[at - 1].next) {
      if (outgoing_[at - 1].method == Method::kWrite) return false;
    }
  }
  if (!connect::EventWait::arm(arrivals_queue_->get())) return false;
  if (something_came()) return false;
  const bool wakes = everything_wakes();
  if (wakes) ++statistics_.sleeps;
  place_->set_limit(wakes ? static_cast<uint64_t>(options_.max_sleep_ns) : kShortSleepNs);
  watch_.hurry();
  return true;
}

void MessengerState::wait(int64_t timeout_ns) {
  if (!prepare_to_sleep()) return;
  const auto most_ns =
      static_cast<uint64_t>(everything_wakes() ? options_.max_sleep_ns : int64_t{kShortSleepNs});
  place_->sleep_for(timeout_ns < 0 ? most_ns
                                   : std::min(static_cast<uint64_t>(timeout_ns), most_ns));
}

}  // namespace verbena::message
