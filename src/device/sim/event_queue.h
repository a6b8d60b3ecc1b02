// What happens in virtual time, in order: by time, and at the same time in the order of insertion.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>
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

  bool before(const Event& other) const {
    return at != other.at ? at < other.at : order < other.order;
  }
};

// Nearly everything happens within microseconds of its cause. That goes into a wheel of buckets of
// a few nanoseconds, each sorted when its time has come; what is further away, into a heap.
class EventQueue {
 public:
  EventQueue() : buckets_(kBuckets), occupied_(kBuckets / 64) {}

  void push(Time at, Event::Act act, void* object, uint64_t argument) {
    const Event event{at, next_order_++, act, object, argument};
    ++size_;
    const uint64_t bucket = at / kBucketTime;
    if (bucket <= current_) {
      // Of the bucket that is being emptied, which is sorted, latest first.
      const auto place =
          std::upper_bound(now_.begin(), now_.end(), event,
                           [](const Event& a, const Event& b) { return b.before(a); });
      now_.insert(place, event);
    } else if (bucket - current_ < kBuckets) {
      add(event, bucket);
    } else {
      far_.push_back(event);
      std::push_heap(far_.begin(), far_.end(), later);
    }
  }

  Event pop() {
    VERBENA_DEBUG_ASSERT(size_ > 0);
    if (now_.empty()) advance();
    const Event first = now_.back();
    now_.pop_back();
    --size_;
    // What those that come soon need may be in no cache.
    constexpr size_t kAhead = 3;
    if (now_.size() >= kAhead) {
      const auto object = reinterpret_cast<uintptr_t>(now_[now_.size() - kAhead].object);
      for (uintptr_t byte = 0; byte < 4 * 64; byte += 64) {
        __builtin_prefetch(reinterpret_cast<const void*>(object + byte));
      }
    }
    return first;
  }

  // What comes next; only where there is something.
  const Event& front() {
    VERBENA_DEBUG_ASSERT(size_ > 0);
    if (now_.empty()) advance();
    return now_.back();
  }
  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  Time next_at() { return size_ == 0 ? kNever : front().at; }

 private:
  static constexpr Time kBucketTime = 4096;
  static constexpr uint64_t kBuckets = 2048;

  static bool later(const Event& a, const Event& b) { return b.before(a); }

  void add(const Event& event, uint64_t bucket) {
    const uint64_t place = bucket % kBuckets;
    buckets_[place].push_back(event);
    occupied_[place / 64] |= uint64_t{1} << place % 64;
    ++near_;
  }

  // The first occupied bucket behind the current one.
  uint64_t next_bucket() const {
    const uint64_t start = (current_ + 1) % kBuckets;
    uint64_t word = start / 64;
    uint64_t bits = occupied_[word] & (~uint64_t{0} << start % 64);
    while (bits == 0) {
      word = (word + 1) % occupied_.size();
      bits = occupied_[word];
    }
    const uint64_t place = word * 64 + static_cast<uint64_t>(std::countr_zero(bits));
    return current_ + 1 + (place - start) % kBuckets;
  }

  // Makes the next bucket that has something the current one.
  void advance() {
    uint64_t next = near_ > 0 ? next_bucket() : UINT64_MAX;
    if (!far_.empty()) next = std::min(next, far_.front().at / kBucketTime);
    current_ = next;
    while (!far_.empty() && far_.front().at / kBucketTime < current_ + kBuckets) {
      add(far_.front(), far_.front().at / kBucketTime);
      std::pop_heap(far_.begin(), far_.end(), later);
      far_.pop_back();
    }
    std::vector<Event>& bucket = buckets_[current_ % kBuckets];
    occupied_[current_ % kBuckets / 64] &= ~(uint64_t{1} << current_ % 64);
    near_ -= bucket.size();
    now_.swap(bucket);
    std::sort(now_.begin(), now_.end(), later);
  }

  uint64_t current_ = 0;    // number of the bucket that is being emptied
  std::vector<Event> now_;  // what is left of it, latest first
  std::vector<std::vector<Event>> buckets_;
  std::vector<uint64_t> occupied_;  // a bit per bucket
  uint64_t near_ = 0;               // events in buckets
  // A heap. Not in one piece: it has an event for the time-out of each queue pair, and would be
  // there twice while it grows.
  std::deque<Event> far_;
  size_t size_ = 0;
  uint64_t next_order_ = 0;
};

}  // namespace verbena::sim
