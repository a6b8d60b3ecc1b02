// Something that serves one after the other: a bus, a link, a unit of the RNIC.
#pragma once

#include <algorithm>

#include "src/device/sim/event_queue.h"

namespace verbena::sim {

class Server {
 public:
  // When work that arrives now and takes `service` is done. Work is given only when it arrives,
  // never for later: a place in the queue that is taken in advance blocks those that come before.
  Time serve(Time now, Time service) {
    free_at_ = std::max(now, free_at_) + service;
    given_ += service;
    return free_at_;
  }
  Time free_at() const { return free_at_; }
  // How long it has worked until now; without a gap from now until it is free, too.
  Time busy(Time now) const { return given_ - (std::max(now, free_at_) - now); }

 private:
  Time free_at_ = 0;
  Time given_ = 0;  // of work
};

}  // namespace verbena::sim
