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

#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "src/base/histogram.h"
#include "src/base/runtime.h"
#include "src/base/silence_watch.h"
#include "src/base/tsc.h"
#include "src/bench/experiment/point.h"
#include "src/bench/experiment/run_options.h"
#include "src/bench/load/poll_cost.h"
#include "verbena/rpc.h"
#include "verbena/status.h"

namespace verbena::bench {

// The time stamp counter where it can be trusted, else the slower clock; in a simulation its own.
class LoopClock {
 public:
  LoopClock()
      : per_ns_(VirtualTime::current() == nullptr && tsc_is_steady() ? tsc_cycles_per_ns() : 0) {}
  uint64_t now() const { return per_ns_ > 0 ? read_tsc() : now_ns(); }
  double to_ns(uint64_t ticks) const {
    return static_cast<double>(ticks) / (per_ns_ > 0 ? per_ns_ : 1);
  }
  uint64_t from_ns(uint64_t ns) const {
    return static_cast<uint64_t>(static_cast<double>(ns) * (per_ns_ > 0 ? per_ns_ : 1));
  }

 private:
  double per_ns_;
};

// What a loop is to do.
struct LoopOrders {
  uint32_t pending = 1;  // per target, or with a random one in all
  RunLength length;
  uint64_t begin_ns = 0;  // from when on the duration counts, by now_ns(); 0: from the start
  bool random_target = false;
  bool block = false;  // sleep where the target can wake this thread
  uint32_t active_ppm = Point::kAlwaysActive;
  uint64_t think_ns = 0;
  uint64_t seed = 0;
  // In a simulation: what is measured are the responses between this time and the end of the
  // duration, a window in which the load is steady. What is still pending then is given up. 0: all
  // responses, to the last one.
  uint64_t settle_ns = 0;
  uint64_t stall_ns = kStallNs;  // so long requests wait while none is answered, before it ends
  // Changes as long as the loop runs: what others see of a thread that does not come back from a
  // call.
  std::atomic<uint64_t>* activity = nullptr;

  bool steered() const {
    return random_target || active_ppm != Point::kAlwaysActive || settle_ns != 0;
  }
};

struct LoopOutcome {
  uint64_t completed = 0;
  uint64_t unanswered = 0;  // posted, but the loop ended before the response came
  uint64_t mismatches = 0;  // responses that were not what the responder sent
  uint64_t first_ns = 0;    // first post, by now_ns()
  uint64_t last_ns = 0;     // last response
  Status status{};          // why it ended early

  double elapsed_ns() const { return static_cast<double>(last_ns - first_ns); }
};

template <typename Requester, typename Work, bool kSteered>
class ClosedLoop {
 public:
  // One work per target. Everything must outlive the loop; setting `halt` ends it.
  ClosedLoop(std::span<Requester* const> targets, std::span<Work> works, const LoopOrders& orders,
             const std::atomic<bool>& halt)
      : targets_(targets),
        works_(works),
        orders_(orders),
        halt_(halt),
        silence_(orders.stall_ns, static_cast<uint64_t>(clock_.to_ns(clock_.now()))),
        activity_(orders.activity != nullptr ? *orders.activity : unwatched_),
        random_(orders.seed),
        started_(targets.size() * orders.pending),
        waiting_(targets.size()) {
    refused_.reserve(started_.size());
    retried_.reserve(started_.size());
    resting_.reserve(started_.size());
  }

  // Each latency goes into `latencies`, in ticks of clock(): into the one of its kind, where the
  // work tells kinds of requests apart by uint32_t kind(slot), else into the first.
  LoopOutcome run_timed(std::span<Histogram> latencies) {
    return run([](Requester& target, auto& take) { return target.poll(take); }, latencies.data());
  }
  LoopOutcome run_costed(PollCost& cost) {
    return run([&](Requester& target,
                   auto& take) { return cost.measure([&] { return target.poll(take); }); },
               nullptr);
  }

  const LoopClock& clock() const { return clock_; }

 private:
  // Few: where others want this CPU, each poll may cost their time slices.
  static constexpr uint32_t kIdlePollsPerCheck = 64;
  static constexpr uint32_t kIdlePollsBeforeSleep = 256;

  struct Place {
    uint32_t target;
    uint32_t slot;
  };
  struct Refused {
    Place place;
    uint32_t bytes;
  };
  struct Resting {
    Place place;
    uint64_t until;
  };

  template <typename Poll>
  LoopOutcome run(Poll&& poll, Histogram* latencies) {
    LoopOutcome outcome;
    outcome.first_ns = now_ns();
    const uint64_t begin_ns = orders_.begin_ns == 0 ? outcome.first_ns : orders_.begin_ns;
    const uint64_t late_ns = outcome.first_ns > begin_ns ? outcome.first_ns - begin_ns : 0;
    const uint64_t start = clock_.now();
    const uint64_t deadline = start + clock_.from_ns(orders_.length.duration_ns -
                                                     std::min(late_ns, orders_.length.duration_ns));
    uint64_t last = start;
    uint32_t target = 0;
    const uint64_t settled = start + clock_.from_ns(orders_.settle_ns);
    const auto take = [&](uint32_t slot, std::span<const char> response) {
      last = clock_.now();
      if (!works_[target].check(slot, response)) [[unlikely]]
        ++outcome.mismatches;
      if constexpr (kSteered) {
        if (orders_.settle_ns != 0 && (last < settled || last >= deadline)) {
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
        if (orders_.settle_ns != 0 && clock_.now() >= deadline) return windowed(outcome);
      }
      uint32_t found = 0;
      for (target = 0; target < targets_.size(); ++target) {
        if (waiting_[target] != 0) found += poll(*targets_[target], take);
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
      if (!refused_.empty()) [[unlikely]]
        post_refused();
      if (failed_) [[unlikely]]
        break;
    }
    if (outcome.completed + unmeasured_ < posted_ && outcome.status.ok()) {
      outcome.status = first_failure();
    }
    if constexpr (kSteered) {
      if (orders_.settle_ns != 0 && outcome.status.ok()) return windowed(outcome);
    }
    outcome.unanswered = posted_ - unmeasured_ - outcome.completed;
    outcome.last_ns = outcome.first_ns + static_cast<uint64_t>(clock_.to_ns(last - start));
    return outcome;
  }

  // What a window says: as many as there were in it, from its begin to its end.
  LoopOutcome windowed(LoopOutcome outcome) const {
    outcome.last_ns = outcome.first_ns + orders_.length.duration_ns;
    outcome.first_ns += orders_.settle_ns;
    return outcome;
  }

  static uint32_t kind_of(const Work& work, uint32_t slot) {
    if constexpr (requires { work.kind(slot); }) {
      return work.kind(slot);
    } else {
      return 0;
    }
  }
  size_t index_of(Place place) const { return size_t{place.target} * orders_.pending + place.slot; }
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
    uint64_t due = UINT64_MAX;
    if (VirtualTime::current() == nullptr) return due;
    if constexpr (requires(const Requester& target) { target.due_ns(); }) {
      for (const Requester* target : targets_) due = std::min(due, target->due_ns());
    }
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

  void post(Place place, uint64_t now) {
    Requester& target = *targets_[place.target];
    const uint32_t bytes =
        works_[place.target].prepare(place.slot, target.request_buffer(place.slot));
    // Writing and checking payloads belongs to the application, not to the message.
    started_[index_of(place)] = Work::kTakesTime ? clock_.now() : now;
    ++posted_;
    ++waiting_[place.target];
    try_post(place, bytes);
  }

  void try_post(Place place, uint32_t bytes) {
    const PostResult result = targets_[place.target]->try_post(place.slot, bytes);
    if (result == PostResult::kPosted) [[likely]]
      return;
    if (result == PostResult::kWouldBlock) {
      refused_.push_back({place, bytes});
    } else {
      failed_ = true;
    }
  }

  // The send queue was full; by now completions may have freed it. The wait counts as latency.
  void post_refused() {
    retried_.swap(refused_);
    for (const Refused& one : retried_) try_post(one.place, one.bytes);
    retried_.clear();
  }

  Status first_failure() const {
    for (const Requester* target : targets_) {
      if (!target->status().ok()) return target->status();
    }
    return Status::ok_status();
  }

  // Rarely, and only while nothing comes: whether it still makes sense to wait.
  bool can_go_on(uint64_t last, uint64_t unanswered, Status* status) {
    show_activity();
    *status = first_failure();
    if (!status->ok()) return false;
    const uint64_t now = clock_.now();
    // Those that rest wait for nobody.
    const uint64_t progress = unanswered == 0 ? now : last;
    if (!silence_.too_long(static_cast<uint64_t>(clock_.to_ns(now)), progress)) return true;
    *status = Status(
        StatusCode::kTimeout,
        fmt::format("no response for {:.1f} s to {} pending requests, although the responder is "
                    "connected; is its process stopped, or its machine overloaded?",
                    static_cast<double>(silence_.silent_ns()) / 1e9, unanswered));
    return false;
  }

  // One writer: no other thread changes it.
  void show_activity() { activity_.store(++steps_, std::memory_order_relaxed); }

  std::span<Requester* const> targets_;
  std::span<Work> works_;
  LoopOrders orders_;
  const std::atomic<bool>& halt_;
  VirtualTime* const time_ = VirtualTime::current();  // whose ticks are nanoseconds
  LoopClock clock_;
  SilenceWatch silence_;
  std::atomic<uint64_t> unwatched_{0};
  std::atomic<uint64_t>& activity_;
  uint64_t steps_ = 0;
  Random random_;
  std::vector<uint64_t> started_;  // by target and slot
  std::vector<uint32_t> waiting_;  // by target: requests without a response
  std::vector<Refused> refused_;   // to be posted again
  std::vector<Refused> retried_;
  std::vector<Resting> resting_;
  uint64_t posted_ = 0;
  uint64_t unmeasured_ = 0;  // answered outside of the window
  bool failed_ = false;
};

}  // namespace verbena::bench
