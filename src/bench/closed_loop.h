// The requester's loop: keeps a fixed number of requests pending until the run is over.
//
// It is closed: a request is posted as soon as the response of the one before it in its slot was
// taken. A latency counts from just before the post to just after the response was found, so the
// wait behind other pending requests is part of it. What a closed loop cannot show is the queue of
// an application that goes on sending while the system is slow (coordinated omission): it offers
// load only as fast as responses come.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <vector>

#include "src/base/histogram.h"
#include "src/base/runtime.h"
#include "src/base/tsc.h"
#include "src/bench/interrupt.h"
#include "src/bench/messages.h"
#include "src/bench/point.h"
#include "src/bench/poll_cost.h"
#include "verbena/connection.h"
#include "verbena/rpc.h"
#include "verbena/status.h"

namespace verbena::bench {

// The time stamp counter where it can be trusted, else the slower clock.
class LoopClock {
 public:
  LoopClock() : per_ns_(tsc_is_steady() ? tsc_cycles_per_ns() : 0) {}
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

struct LoopOutcome {
  uint64_t completed = 0;
  uint64_t unanswered = 0;  // posted, but the loop ended before the response came
  uint64_t mismatches = 0;  // responses that were not what the responder sent
  double elapsed_ns = 0;    // first post to last response
  Status status;            // why it ended early
};

template <typename Requester, typename Work>
class ClosedLoop {
 public:
  ClosedLoop(Requester& requester, ControlConnection& control, Work& work, const Point& point,
             const RunLength& length)
      : requester_(requester),
        control_(control),
        work_(work),
        pending_(point.pending),
        length_(length),
        started_(point.pending) {
    refused_.reserve(point.pending);
    retried_.reserve(point.pending);
  }

  // Each latency goes into `latency`, in ticks of clock().
  LoopOutcome run_timed(Histogram& latency) {
    return run([this](auto& take) { return requester_.poll(take); }, &latency);
  }
  LoopOutcome run_costed(PollCost& cost) {
    return run([&](auto& take) { return cost.measure([&] { return requester_.poll(take); }); },
               nullptr);
  }

  const LoopClock& clock() const { return clock_; }

 private:
  // A responder that neither answers nor is gone: stopped, or stuck.
  static constexpr uint64_t kStallNs = 30'000'000'000;
  static constexpr uint64_t kLookNs = 20'000'000;
  static constexpr uint32_t kIdlePollsPerClock = 4096;

  template <typename Poll>
  LoopOutcome run(Poll&& poll, Histogram* latency) {
    const uint64_t start = clock_.now();
    const uint64_t deadline = start + clock_.from_ns(length_.duration_ns);
    uint64_t last = start;
    LoopOutcome outcome;
    const auto take = [&](uint32_t slot, std::span<const char> response) {
      last = clock_.now();
      if (latency != nullptr) latency->record(last - started_[slot]);
      ++outcome.completed;
      if (!work_.check(slot, response)) [[unlikely]]
        ++outcome.mismatches;
      if (posted_ < length_.requests && last < deadline && !interrupted()) [[likely]] {
        post(slot, last);
      }
    };

    for (uint32_t slot = 0; slot < pending_ && posted_ < length_.requests; ++slot) {
      post(slot, clock_.now());
    }
    Waiter waiter;
    uint32_t idle_polls = 0;
    uint64_t last_look_ns = now_ns();
    while (outcome.completed < posted_) {
      if (poll(take) > 0) {
        idle_polls = 0;
        waiter.progress();
      } else if (++idle_polls % kIdlePollsPerClock != 0) {
        waiter.idle();
      } else {
        waiter.idle();
        if (!look(last, &last_look_ns, &outcome.status)) break;
      }
      if (!refused_.empty()) [[unlikely]]
        post_refused();
      if (failed_) [[unlikely]]
        break;
    }
    if (outcome.completed < posted_ && outcome.status.ok()) outcome.status = requester_.status();
    outcome.unanswered = posted_ - outcome.completed;
    outcome.elapsed_ns = clock_.to_ns(last - start);
    return outcome;
  }

  void post(uint32_t slot, uint64_t now) {
    const uint32_t bytes = work_.prepare(slot, requester_.request_buffer(slot));
    // Writing and checking payloads belongs to the application, not to the message.
    started_[slot] = Work::kTakesTime ? clock_.now() : now;
    ++posted_;
    try_post(slot, bytes);
  }

  void try_post(uint32_t slot, uint32_t bytes) {
    const PostResult result = requester_.try_post(slot, bytes);
    if (result == PostResult::kPosted) [[likely]]
      return;
    if (result == PostResult::kWouldBlock) {
      refused_.push_back({slot, bytes});
    } else {
      failed_ = true;
    }
  }

  // The send queue was full; by now completions may have freed it. The wait counts as latency.
  void post_refused() {
    retried_.swap(refused_);
    for (const Refused& one : retried_) try_post(one.slot, one.bytes);
    retried_.clear();
  }

  // Rarely, and only while nothing comes: whether it still makes sense to wait.
  bool look(uint64_t last, uint64_t* last_look_ns, Status* status) {
    if (!requester_.status().ok()) return false;
    const uint64_t now = now_ns();
    if (now - *last_look_ns < kLookNs) return true;
    *last_look_ns = now;
    if (interrupted()) {
      *status = Status(StatusCode::kUnavailable, "interrupted");
      return false;
    }
    if (clock_.to_ns(clock_.now() - last) > static_cast<double>(kStallNs)) {
      *status =
          Status(StatusCode::kTimeout,
                 fmt::format("no response for {} s although the responder lives; is its process "
                             "stopped, or its machine overloaded?",
                             kStallNs / 1'000'000'000));
      return false;
    }
    // During a phase the responder says something only if it failed.
    const Result<Message> message = receive_message(control_, 0);
    if (message.ok()) {
      *status = message->kind == MessageKind::kFailed
                    ? Status(message->code, message->cause)
                    : Status(StatusCode::kProtocolViolation,
                             "the responder sent a message in the middle of a run");
      return false;
    }
    return message.status().code() == StatusCode::kTimeout ||
           message.status().code() ==
               StatusCode::kUnavailable;  // the requester notices that itself
  }

  struct Refused {
    uint32_t slot;
    uint32_t bytes;
  };

  Requester& requester_;
  ControlConnection& control_;
  Work& work_;
  uint32_t pending_;
  RunLength length_;
  LoopClock clock_;
  std::vector<uint64_t> started_;  // by slot
  std::vector<Refused> refused_;   // to be posted again
  std::vector<Refused> retried_;
  uint64_t posted_ = 0;
  bool failed_ = false;
};

}  // namespace verbena::bench
