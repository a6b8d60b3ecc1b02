// Sleeping until a completion arrives, for those who would rather free the core than poll.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>

#include "verbena/device.h"
#include "verbena/status.h"

namespace verbena::connect {

class EventWait {
 public:
  // Without it, wait() is never possible and arrivals cost nothing more.
  Status enable(const Device& device);
  // Where completion queues that are to wake the sleeper send their events; null: nowhere.
  const CompletionChannel* channel() const { return channel_.get(); }

  // The queue's next completion is to be an event. Then poll the queue once more, and only then
  // sleep: what came before is no event.
  static bool arm(ibv_cq* queue) { return ibv_req_notify_cq(queue, /*solicited_only=*/0) == 0; }
  // Sleeps until an event, for at most `timeout_ns` (negative: no limit), and never for long: peers
  // are to be served.
  void sleep_for(int64_t timeout_ns);

 private:
  std::unique_ptr<CompletionChannel> channel_;
};

}  // namespace verbena::connect
