// So many things that may be under way at once, such as reads over a bus by their tags. What comes
// when all places are taken waits for the first that becomes free.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "src/base/assert.h"
#include "src/device/sim/event_queue.h"

namespace verbena::sim {

class Places {
 public:
  void configure(uint64_t count) {
    VERBENA_ASSERT(count > 0);
    ends_.assign(count, 0);
  }

  // When what arrives now is done: `service` after it has its place, and not before `earliest`,
  // which something else keeps it until. It has its place until then.
  Time serve(Time now, Time service, Time earliest) {
    std::pop_heap(ends_.begin(), ends_.end(), std::greater<>());
    const Time begin = std::max(now, ends_.back());
    const Time end = std::max(begin + service, earliest);
    ends_.back() = end;
    std::push_heap(ends_.begin(), ends_.end(), std::greater<>());
    taken_ += end - begin;
    return end;
  }

  // How long they have been taken until now, as if they were one: all of them all the time is all
  // of the time.
  Time busy(Time now) const {
    Time ahead = 0;
    for (const Time end : ends_) ahead += std::max(now, end) - now;
    return (taken_ - std::min(taken_, ahead)) / ends_.size();
  }

 private:
  std::vector<Time> ends_;  // a heap, the first that ends on top
  Time taken_ = 0;
};

}  // namespace verbena::sim
