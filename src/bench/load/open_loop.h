// The requesting thread's loop where requests arrive at a rate: each is posted when it is due, or
// as soon as a slot is free after that.
//
// A latency counts from the time at which the request was to start, so what waits because the
// system, or this thread, is late counts in full (no coordinated omission). Requests that were due
// but found no slot until the end were offered and not answered: they show in the rates, not in the
// latencies, which beyond saturation grow with the length of the run.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "src/base/assert.h"
#include "src/base/histogram.h"
#include "src/base/runtime.h"
#include "src/bench/load/arrival_process.h"
#include "src/bench/load/request_loop.h"
#include "verbena/rpc.h"
#include "verbena/status.h"

namespace verbena::bench {

// How the requests of one thread arrive.
struct ArrivalOrders {
  Arrivals arrivals = Arrivals::kPoisson;
  double rate_per_s = 0;   // of this thread; > 0
  double first_share = 0;  // of a gap, before the first one of kEven
};

struct OpenLoopOutcome {
  LoopOutcome loop;
  uint64_t arrivals = 0;     // in the measured time
  uint64_t arrivals_ns = 0;  // the measured time
};

template <typename Requester, typename Work>
class OpenLoop : public RequestLoop<Requester, Work> {
  using Base = RequestLoop<Requester, Work>;
  using Base::can_go_on;
  using Base::clock_;
  using Base::failed_;
  using Base::first_failure;
  using Base::halt_;
  using Base::index_of;
  using Base::kIdlePollsPerCheck;
  using Base::kind_of;
  using Base::orders_;
  using Base::posted_;
  using Base::random_;
  using Base::show_activity;
  using Base::started_;
  using Base::targets_;
  using Base::waiting_;
  using Base::works_;
  using typename Base::Place;

 public:
  // As ClosedLoop. A request takes the slot that has been free longest, of all targets; with random
  // targets a slot of this thread, at the target that it draws.
  OpenLoop(std::span<Requester* const> targets, std::span<Work> works, const LoopOrders& orders,
           const ArrivalOrders& arrivals, const std::atomic<bool>& halt)
      : Base(targets, works, orders, halt),
        process_(arrivals.arrivals, gap_of(arrivals, clock_),
                 gap_of(arrivals, clock_) * arrivals.first_share, random_.next()) {
    const auto owners = static_cast<uint32_t>(orders.random_target ? 1 : targets.size());
    free_.resize(size_t{owners} * orders.pending);
    free_count_ = free_.size();
    for (size_t i = 0; i < free_.size(); ++i) {
      free_[i] = {static_cast<uint32_t>(i % owners), static_cast<uint32_t>(i / owners)};
    }
  }

  // Each latency goes into `latencies` as ClosedLoop has them.
  OpenLoopOutcome run_timed(std::span<Histogram> latencies) {
    LoopOutcome outcome;
    outcome.first_ns = now_ns();
    const auto times = this->start_times();
    start_ = times.start;
    end_ = times.deadline;
    settled_ = times.settled;
    uint64_t last = start_;
    uint32_t target = 0;
    const auto take = [&](uint32_t slot, std::span<const char> response) {
      last = clock_.now();
      if (!works_[target].check(slot, response)) [[unlikely]]
        ++outcome.mismatches;
      --waiting_[target];
      --under_way_;
      give_back({orders_.random_target ? 0 : target, slot});
      if (orders_.settle_ns != 0 && (last < settled_ || last >= end_)) return;
      const uint64_t started = started_[index_of({target, slot})];
      latencies[kind_of(works_[target], slot)].record(last - started);
      if (time_ != nullptr) {
        time_->message_taken(started, last, targets_[target]->request_buffer(slot),
                             response.data());
      }
      ++outcome.completed;
    };

    show_activity();
    Waiter waiter;
    uint32_t idle_polls = 0;
    for (;;) {
      const uint64_t now = clock_.now();
      if (now >= end_ && (orders_.settle_ns != 0 || under_way_ == 0)) break;
      if (under_way_ == 0 && posted_ >= orders_.length.requests) break;
      uint32_t found = post_due(now);
      for (target = 0; target < targets_.size(); ++target) {
        if (waiting_[target] != 0) found += targets_[target]->poll(take);
      }
      if (found > 0) {
        idle_polls = 0;
        waiter.progress();
        show_activity();
      } else {
        if (halt_.load(std::memory_order_relaxed)) [[unlikely]]
          break;
        if (++idle_polls % kIdlePollsPerCheck == 0 && !can_go_on(last, under_way_, &outcome.status))
          break;
        if (!awaits_arrival() || due() > clock_.now()) waiter.idle(next_due_ns());
      }
      this->post_refused();
      if (failed_) [[unlikely]]
        break;
    }
    if (outcome.status.ok()) outcome.status = first_failure();
    return measured(outcome, last, times.begin_ns);
  }

 private:
  static double gap_of(const ArrivalOrders& arrivals, const LoopClock& clock) {
    VERBENA_ASSERT(arrivals.rate_per_s > 0);
    constexpr uint64_t kSecondNs = 1'000'000'000;
    return static_cast<double>(clock.from_ns(kSecondNs)) / arrivals.rate_per_s;
  }
  // By the clock; later than any end where the run is so long that it never comes.
  uint64_t due() const {
    const double ticks = process_.due();
    return ticks < static_cast<double>(end_ - start_) ? start_ + static_cast<uint64_t>(ticks)
                                                      : end_;
  }
  // Whether a slot waits for an arrival, rather than the other way round.
  bool awaits_arrival() const {
    return free_count_ > 0 && due() < end_ && posted_ < orders_.length.requests;
  }

  // Returns how many were posted.
  uint32_t post_due(uint64_t now) {
    uint32_t posted = 0;
    while (awaits_arrival() && now < end_ && due() <= now &&
           !halt_.load(std::memory_order_relaxed)) {
      const uint64_t intended = due();
      if (intended >= settled_) ++arrivals_;
      process_.advance();
      post(take_free(), intended);
      ++posted;
    }
    return posted;
  }

  Place take_free() {
    VERBENA_DEBUG_ASSERT(free_count_ > 0);
    Place place = free_[free_first_];
    free_first_ = free_first_ + 1 == free_.size() ? 0 : free_first_ + 1;
    --free_count_;
    if (orders_.random_target) place.target = static_cast<uint32_t>(random_.below(targets_.size()));
    return place;
  }
  void give_back(Place place) {
    VERBENA_DEBUG_ASSERT(free_count_ < free_.size());
    const size_t at = free_first_ + free_count_;
    free_[at < free_.size() ? at : at - free_.size()] = place;
    ++free_count_;
  }

  void post(Place place, uint64_t intended) {
    ++under_way_;
    Base::post(place, intended);
  }

  // When there will be something to do even if no response comes, where only virtual time will
  // tell.
  uint64_t next_due_ns() const {
    if (VirtualTime::current() == nullptr) return UINT64_MAX;
    const uint64_t now = clock_.now();
    uint64_t next = now < end_ ? end_ : UINT64_MAX;
    if (awaits_arrival()) next = std::min(next, due());
    return std::min(next, this->targets_due_ns());
  }

  // What the measured time says: as much as there was in it, from its begin to its end.
  OpenLoopOutcome measured(const LoopOutcome& outcome, uint64_t last, uint64_t begin_ns) {
    const bool by_time = posted_ < orders_.length.requests;
    // Else it ends with the gap after the last request: so many gaps as requests.
    const uint64_t end = by_time ? end_ : start_ + static_cast<uint64_t>(process_.due());
    OpenLoopOutcome open{.loop = outcome, .arrivals = arrivals_};
    if (by_time && process_.due() < static_cast<double>(end_ - start_)) {
      // What had no slot in all the time: drawing it one by one could take longer than the run.
      const double from = std::max(process_.due(), static_cast<double>(settled_ - start_));
      open.arrivals += static_cast<uint64_t>(
          std::llround((static_cast<double>(end_ - start_) - from) / process_.mean_gap()));
    }
    open.arrivals_ns = static_cast<uint64_t>(clock_.to_ns(end - std::min(settled_, end)));
    open.loop.unanswered = orders_.settle_ns != 0 && outcome.status.ok() ? 0 : under_way_;
    open.loop.last_ns =
        outcome.first_ns +
        static_cast<uint64_t>(clock_.to_ns((by_time ? std::max(last, end_) : last) - start_));
    if (orders_.settle_ns != 0) {
      open.loop.last_ns = begin_ns + orders_.length.duration_ns;
      open.loop.first_ns = begin_ns + orders_.settle_ns;
    }
    return open;
  }

  VirtualTime* const time_ = VirtualTime::current();  // whose ticks are nanoseconds
  ArrivalProcess process_;                            // in ticks of the clock, from start_
  std::vector<Place> free_;  // a ring of free_count_ places from free_first_
  size_t free_first_ = 0;
  size_t free_count_ = 0;
  uint64_t start_ = 0;    // of the arrivals
  uint64_t settled_ = 0;  // from here on it is measured
  uint64_t end_ = 0;      // nothing is sent from here on
  uint64_t under_way_ = 0;
  uint64_t arrivals_ = 0;  // posted, of the measured time
};

}  // namespace verbena::bench
