// What the loops of a requesting thread have in common (closed_loop.h, open_loop.h): the slots of
// its targets, posting a request and posting it again where a send queue was full, and giving up
// where a connection broke or nothing is answered.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "src/base/runtime.h"
#include "src/base/silence_watch.h"
#include "src/base/tsc.h"
#include "src/bench/experiment/point.h"
#include "src/bench/experiment/run_options.h"
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

// What a loop keeps, whatever it drives.
class RequestLoopBase {
 public:
  const LoopClock& clock() const { return clock_; }

 protected:
  // Few: where others want this CPU, each poll may cost their time slices.
  static constexpr uint32_t kIdlePollsPerCheck = 64;

  struct Place {
    uint32_t target;
    uint32_t slot;
  };
  struct Refused {
    Place place;
    uint32_t bytes;
  };

  RequestLoopBase(size_t targets, const LoopOrders& orders, const std::atomic<bool>& halt);
  ~RequestLoopBase() = default;

  size_t index_of(Place place) const { return size_t{place.target} * orders_.pending + place.slot; }

  // The times of a loop that starts now. What the duration counts from may have been before: a
  // thread whose core another one had is late, and ends with the others.
  struct Times {
    uint64_t start = 0;     // by the clock
    uint64_t begin_ns = 0;  // by now_ns(), as what follows counts from it
    uint64_t settled = 0;   // from here on it is measured, by the clock
    uint64_t deadline = 0;
  };
  Times start_times() const;

  // Why a target works no longer, if one does not.
  virtual Status first_failure() const = 0;

  // Rarely, and only while nothing comes: whether it still makes sense to wait.
  bool can_go_on(uint64_t last, uint64_t unanswered, Status* status);

  // One writer: no other thread changes it.
  void show_activity() { activity_.store(++steps_, std::memory_order_relaxed); }

  LoopOrders orders_;
  const std::atomic<bool>& halt_;
  LoopClock clock_;
  Random random_;
  std::vector<uint64_t> started_;  // by target and slot
  std::vector<uint32_t> waiting_;  // by target: requests without a response
  std::vector<Refused> refused_;   // to be posted again
  std::vector<Refused> retried_;
  uint64_t posted_ = 0;
  bool failed_ = false;

 private:
  SilenceWatch silence_;
  std::atomic<uint64_t> unwatched_{0};
  std::atomic<uint64_t>& activity_;
  uint64_t steps_ = 0;
};

template <typename Requester, typename Work>
class RequestLoop : public RequestLoopBase {
 protected:
  RequestLoop(std::span<Requester* const> targets, std::span<Work> works, const LoopOrders& orders,
              const std::atomic<bool>& halt)
      : RequestLoopBase(targets.size(), orders, halt), targets_(targets), works_(works) {}
  ~RequestLoop() = default;

  static uint32_t kind_of(const Work& work, uint32_t slot) {
    if constexpr (requires { work.kind(slot); }) {
      return work.kind(slot);
    } else {
      return 0;
    }
  }

  // Its latency counts from `started`; without that from where its payload is written, which is no
  // time of the message's.
  void post(Place place, std::optional<uint64_t> started) {
    Requester& target = *targets_[place.target];
    const uint32_t bytes =
        works_[place.target].prepare(place.slot, target.request_buffer(place.slot));
    started_[index_of(place)] = started ? *started : clock_.now();
    ++posted_;
    ++waiting_[place.target];
    try_post(place, bytes);
  }

  // The send queue was full; by now completions may have freed it. The wait counts as latency.
  void post_refused() {
    if (refused_.empty()) [[likely]]
      return;
    retried_.swap(refused_);
    for (const Refused& one : retried_) try_post(one.place, one.bytes);
    retried_.clear();
  }

  // When a target has something to do of its own accord.
  uint64_t targets_due_ns() const {
    uint64_t due = UINT64_MAX;
    if constexpr (requires(const Requester& target) { target.due_ns(); }) {
      for (const Requester* target : targets_) due = std::min(due, target->due_ns());
    }
    return due;
  }

  Status first_failure() const final {
    for (const Requester* target : targets_) {
      if (!target->status().ok()) return target->status();
    }
    return Status::ok_status();
  }

  std::span<Requester* const> targets_;
  std::span<Work> works_;

 private:
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
};

}  // namespace verbena::bench
