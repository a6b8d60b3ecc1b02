// The requesting thread's loop: keeps a fixed number of requests pending until the run is over.
//
// It is closed: a request is posted as soon as the response of the one before it was taken. A
// latency counts from just before the post to just after the response was found, so the wait behind
// other pending requests is part of it. What a closed loop cannot show is the queue of an
// application that goes on sending while the system is slow (coordinated omission): it offers load
// only as fast as responses come.
//
// A thread has one requester per responding thread that it is wired to (its targets). Usually each
// keeps its own requests pending. A steered loop draws instead: the target of each request, where
// the wiring says so, and whether to send at all or to rest.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "src/base/histogram.h"
#include "src/base/runtime.h"
#include "src/bench/experiment/point.h"
#include "src/bench/load/poll_cost.h"
#include "src/bench/load/request_loop.h"
#include "verbena/rpc.h"
#include "verbena/status.h"

namespace verbena::bench {

template <typename Requester, typename Work, bool kSteered>
class ClosedLoop : public RequestLoop<Requester, Work> {
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
  // One work per target. Everything must outlive the loop; setting `halt` ends it.
  ClosedLoop(std::span<Requester* const> targets, std::span<Work> works, const LoopOrders& orders,
             const std::atomic<bool>& halt)
      : Base(targets, works, orders, halt) {
    resting_.reserve(started_.size());
  }

  // Each latency goes into `latencies`, in ticks of clock(): into the one of its kind, where the
  // work tells kinds of requests apart by uint32_t kind(slot), else into the first.
  LoopOutcome run_timed(std::span<Histogram> latencies) { return run(nullptr, latencies.data()); }
  LoopOutcome run_costed(PollCost& cost) { return run(&cost, nullptr); }

 private:
  static constexpr uint32_t kIdlePollsBeforeSleep = 256;

  struct Resting {
    Place place;
    uint64_t until;
  };

  LoopOutcome run(PollCost* cost, Histogram* latencies) {
    LoopOutcome outcome;
    outcome.first_ns = now_ns();
    const auto times = this->start_times();
    const uint64_t deadline = times.deadline;
    uint64_t last = times.start;
    uint32_t target = 0;
    const auto take = [&](uint32_t slot, std::span<const char> response) {
      last = clock_.now();
      if (!works_[target].check(slot, response)) [[unlikely]]
        ++outcome.mismatches;
      if constexpr (kSteered) {
        if (orders_.settle_ns != 0 && (last < times.settled || last >= deadline)) {
          ++unmeasured_;
          --waiting_[target];
          if (last < deadline && may_post()) go_on({target, slot}, last);
          return;
        }
      }
      if (latencies != nullptr) {
        const uint64_t started = started_[index_of({target, slot})];
        latencies[kind_of(works_[target], slot)].record(last - started);
        if (time_ != nullptr) {
          time_->message_taken(started, last, targets_[target]->request_buffer(slot),
                               response.data());
        }
      }
      ++outcome.completed;
      --waiting_[target];
      if (last < deadline && may_post()) [[likely]] {
        go_on({target, slot}, last);
      }
    };

    show_activity();  // from here on a call that does not return is noticed
    start_lanes();
    Waiter waiter;
    uint32_t idle_polls = 0;
    while (outcome.completed + unmeasured_ < posted_ || has_rest(deadline)) {
      if constexpr (kSteered) {
        if (orders_.settle_ns != 0 && clock_.now() >= deadline)
          return windowed(outcome, times.begin_ns);
      }
      uint32_t found = 0;
      for (target = 0; target < targets_.size(); ++target) {
        if (waiting_[target] != 0) found += poll_costed(cost, *targets_[target], take);
      }
      if (found > 0) {
        idle_polls = 0;
        waiter.progress();
        show_activity();
      } else {
        if (halt_.load(std::memory_order_relaxed)) [[unlikely]]
          break;
        if (++idle_polls % kIdlePollsPerCheck == 0) {
          const uint64_t unanswered = posted_ - outcome.completed - unmeasured_;
          if (!can_go_on(last, unanswered, &outcome.status)) break;
        }
        if (wake_rested()) {
          waiter.progress();
        } else if (!orders_.block || idle_polls < kIdlePollsBeforeSleep || targets_.size() > 1 ||
                   !targets_[0]->wait(-1)) {
          waiter.idle(next_due_ns(deadline));
        }
      }
      this->post_refused();
      if (failed_) [[unlikely]]
        break;
    }
    if (outcome.completed + unmeasured_ < posted_ && outcome.status.ok()) {
      outcome.status = first_failure();
    }
    if constexpr (kSteered) {
      if (orders_.settle_ns != 0 && outcome.status.ok()) return windowed(outcome, times.begin_ns);
    }
    outcome.unanswered = posted_ - unmeasured_ - outcome.completed;
    outcome.last_ns = outcome.first_ns + static_cast<uint64_t>(clock_.to_ns(last - times.start));
    return outcome;
  }

  // What a window says: as many as there were in it, from its begin to its end.
  LoopOutcome windowed(LoopOutcome outcome, uint64_t begin_ns) const {
    outcome.last_ns = begin_ns + orders_.length.duration_ns;
    outcome.first_ns = begin_ns + orders_.settle_ns;
    return outcome;
  }

  bool may_post() const {
    return posted_ < orders_.length.requests && !halt_.load(std::memory_order_relaxed);
  }

  // Each lane is one pending request; in a steered loop with random targets a lane is a slot, which
  // it uses at whatever target it drew, so that no two lanes want the same place.
  void start_lanes() {
    const auto targets =
        static_cast<uint32_t>(kSteered && orders_.random_target ? 1 : targets_.size());
    for (uint32_t slot = 0; slot < orders_.pending; ++slot) {
      for (uint32_t target = 0; target < targets && posted_ < orders_.length.requests; ++target) {
        if constexpr (kSteered) {
          go_on({target, slot}, clock_.now());
        } else {
          post({target, slot}, clock_.now());
        }
      }
    }
  }

  void go_on(Place place, uint64_t now) {
    if constexpr (kSteered) {
      if (orders_.active_ppm != Point::kAlwaysActive &&
          random_.below(Point::kAlwaysActive) >= orders_.active_ppm) {
        resting_.push_back({place, now + clock_.from_ns(orders_.think_ns)});
        return;
      }
      if (orders_.random_target) {
        place.target = static_cast<uint32_t>(random_.below(targets_.size()));
      }
    }
    post(place, now);
  }

  // Whether a lane that rests will still send. Those that rest at the end of the run do not.
  bool has_rest(uint64_t deadline) {
    if constexpr (kSteered) {
      if (!resting_.empty() && (clock_.now() >= deadline || !may_post())) resting_.clear();
      return !resting_.empty();
    }
    return false;
  }

  // When the next lane has rested enough, or a target has something to do of its own accord, where
  // only virtual time will tell.
  uint64_t next_due_ns(uint64_t deadline) const {
    if (VirtualTime::current() == nullptr) return UINT64_MAX;
    uint64_t due = this->targets_due_ns();
    if constexpr (kSteered) {
      if (orders_.settle_ns != 0) due = deadline;
      for (const Resting& one : resting_) due = std::min(due, one.until);
    }
    return due;
  }

  // True if one has rested enough.
  bool wake_rested() {
    bool woken = false;
    if constexpr (kSteered) {
      const uint64_t now = clock_.now();
      for (size_t i = resting_.size(); i-- > 0;) {
        if (resting_[i].until > now) continue;
        const Place place = resting_[i].place;
        resting_[i] = resting_.back();
        resting_.pop_back();
        woken = true;
        if (may_post()) go_on(place, now);
      }
    }
    return woken;
  }

  // Writing and checking payloads belongs to the application, not to the message.
  void post(Place place, uint64_t now) {
    Base::post(place, works_[place.target].takes_time() ? std::nullopt : std::optional(now));
  }

  VirtualTime* const time_ = VirtualTime::current();  // whose ticks are nanoseconds
  std::vector<Resting> resting_;
  uint64_t unmeasured_ = 0;  // answered outside of the window
};

}  // namespace verbena::bench
