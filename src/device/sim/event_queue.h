// What happens in virtual time, in order: by time, and at the same time in the order of insertion.
#pragma once

#include <cstdint>
#include <vector>

#include "src/base/assert.h"

namespace verbena::sim {

// Picoseconds since the simulation began: whole numbers, so that a run is the same on every
// machine. Enough for 200 days.
using Time = uint64_t;
inline constexpr Time kPsPerNs = 1000;
inline constexpr Time kNever = UINT64_MAX;

struct Event {
  using Act = void (*)(void* object, uint64_t argument);
  Time at;
  uint64_t order;
  Act act;
  void* object;
  uint64_t argument;
};

// A heap of four children per entry: shallow, and a parent's children share a few cache lines.
class EventQueue {
 public:
  void push(Time at, Event::Act act, void* object, uint64_t argument) {
    const Event event{at, next_order_++, act, object, argument};
    size_t place = heap_.size();
    heap_.push_back(event);
    while (place > 0) {
      const size_t parent = (place - 1) / kChildren;
      if (!before(event, heap_[parent])) break;
      heap_[place] = heap_[parent];
      place = parent;
    }
    heap_[place] = event;
  }

  Event pop() {
    VERBENA_DEBUG_ASSERT(!heap_.empty());
    const Event first = heap_.front();
    const Event last = heap_.back();
    heap_.pop_back();
    const size_t size = heap_.size();
    if (size == 0) return first;
    size_t place = 0;
    for (;;) {
      const size_t begin = place * kChildren + 1;
      if (begin >= size) break;
      const size_t end = begin + kChildren < size ? begin + kChildren : size;
      size_t least = begin;
      for (size_t child = begin + 1; child < end; ++child) {
        if (before(heap_[child], heap_[least])) least = child;
      }
      if (!before(heap_[least], last)) break;
      heap_[place] = heap_[least];
      place = least;
    }
    heap_[place] = last;
    return first;
  }

  // What comes next; only where there is something.
  Event::Act next_act() const { return heap_.front().act; }
  bool empty() const { return heap_.empty(); }
  size_t size() const { return heap_.size(); }
  Time next_at() const { return heap_.empty() ? kNever : heap_.front().at; }

 private:
  static constexpr size_t kChildren = 4;
  static bool before(const Event& a, const Event& b) {
    return a.at != b.at ? a.at < b.at : a.order < b.order;
  }

  std::vector<Event> heap_;
  uint64_t next_order_ = 0;
};

}  // namespace verbena::sim
