// The phases of a thread that sends requests and measures them, over its own queue pairs or through
// a dispatcher.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "src/base/histogram.h"
#include "src/bench/experiment/workload.h"
#include "src/bench/load/closed_loop.h"
#include "src/bench/load/open_loop.h"
#include "src/bench/run/node_job.h"
#include "src/bench/run/stream_seed.h"

namespace verbena::bench {

// The work of a target that has no payload to write and to check.
struct NoPayload {
  static constexpr bool kTakesTime = false;
  uint32_t prepare(uint32_t /*slot*/, char* /*request*/) { return 0; }
  bool check(uint32_t /*slot*/, std::span<const char> /*response*/) { return true; }
};
struct NoPayloads {
  template <bool kVerify>
  std::vector<NoPayload> make(const Phase& /*phase*/) const {
    return std::vector<NoPayload>(1);
  }
};

// `Target` has a requester's request_buffer, try_post, poll, wait, status and mark_layout. `Works`
// makes what the loop does to the payloads: make<kVerify>(phase) returns a vector with one work per
// target (ClosedLoop). Where it has Status prepare(const Phase&), that makes each phase ready;
// where it has bool complete(), that does what was answered before it was done, in the measured
// time (false: nothing was left; a window is steady, so its end waits for nothing);
// where it has Status ended(Report&), that adds to the phase's report; where it has kMayArrive, the
// timed phase is an open loop at points with an arrival rate.
template <typename Target, typename Works>
class RequestPhases {
 public:
  RequestPhases(NodeJob& job, uint32_t number, std::vector<Target*> targets, Works works,
                Report& report)
      : job_(job),
        number_(number),
        targets_(std::move(targets)),
        works_(std::move(works)),
        report_(report) {}

  // Serves phases until the team leaves.
  void serve(Step step) {
    for (;;) {
      step = job_.team.next(step.number);
      if (step.kind == StepKind::kLeave) return;
      if (step.kind == StepKind::kPrepare) {
        phase_ = step.phase;
        cost_ = phase_.kind == PhaseKind::kCost ? std::make_unique<PollCost>(Side::kRequester)
                                                : nullptr;
        latencies_.clear();
        latencies_.resize(std::max<size_t>(kinds().size(), 1));
        report_ = Report{};
        prepare();
      } else if (step.kind == StepKind::kRun) {
        run(step);
      }
    }
  }

 private:
  std::span<const std::string_view> kinds() const {
    return job_.setup.point.workload->traits().kinds;
  }

  void prepare() {
    Status prepared;
    if constexpr (requires { works_.prepare(phase_); }) prepared = works_.prepare(phase_);
    if (prepared.ok()) {
      job_.team.finished();
    } else {
      job_.team.failed(prepared);
    }
  }

  void run(const Step& step) {
    const Point& point = job_.setup.point;
    LoopOrders orders;
    orders.pending = std::min(point.pending, phase_.most_pending);
    orders.settle_ns = phase_.settle_ns;
    orders.length = phase_.length;
    orders.begin_ns = step.begin_ns;
    orders.random_target = job_.wiring().random_peer;
    orders.block = point.wait == WaitMode::kBlock;
    orders.active_ppm = point.active_ppm;
    orders.think_ns = point.think_ns;
    orders.stall_ns = phase_.stall_ns;
    std::atomic<uint64_t>& activity = job_.activity[number_ - job_.node().first_requesting].count;
    orders.activity = &activity;
    orders.seed = stream_seed(job_.setup.seed, number_) + phase_.number;
    arrived_ = {};
    LoopOutcome outcome = run_any(orders, phase_.verify);
    if constexpr (requires { works_.complete(); }) {
      if (outcome.status.ok() && orders.settle_ns == 0 && works_.complete()) {
        outcome.last_ns = now_ns();
      }
    }
    activity.store(0, std::memory_order_relaxed);

    report_.requests = outcome.completed;
    report_.unanswered = outcome.unanswered;
    report_.mismatches = outcome.mismatches;
    report_.arrivals = arrived_.count;
    report_.arrivals_ns = arrived_.time_ns;
    report_.first_ns = outcome.first_ns - std::min(step.begin_ns, outcome.first_ns);
    report_.last_ns = outcome.last_ns - std::min(step.begin_ns, outcome.last_ns);
    report_.layout = targets_.front()->mark_layout();
    if (cost_ != nullptr && cost_->per_message()) {
      report_.costs = {{*cost_->per_message(), cost_->messages()}};
    }
    const LoopClock clock;
    for (size_t kind = 0; kind < latencies_.size(); ++kind) {
      const Histogram& latency = latencies_[kind];
      latency.for_each_bucket([&](uint64_t first, uint64_t last, uint64_t count) {
        first = std::max(first, latency.min());
        last = std::min(last, latency.max());
        report_.latencies.push_back({static_cast<uint64_t>(clock.to_ns(first + (last - first) / 2)),
                                     count, static_cast<uint8_t>(kind)});
      });
    }
    Status status = outcome.status;
    if constexpr (requires { works_.ended(report_); }) {
      const Status ended = works_.ended(report_);
      if (status.ok()) status = ended;
    }
    if (status.ok()) {
      job_.team.finished();
    } else {
      job_.team.failed(status);
    }
  }

  LoopOutcome run_any(const LoopOrders& orders, bool verify) {
    if (verify) {
      auto works = works_.template make<true>(phase_);
      return run_works(works, orders);
    }
    auto works = works_.template make<false>(phase_);
    return run_works(works, orders);
  }

  // Each loop is compiled for each design: only those that measure are without what they need not.
  template <typename Work>
  LoopOutcome run_works(std::vector<Work>& works, const LoopOrders& orders) {
    if constexpr (requires { Works::kMayArrive; }) {
      // What is not timed warms up or counts instructions, as fast as it can.
      if (job_.setup.point.arrival_rate_per_s > 0 && phase_.kind == PhaseKind::kTimed) {
        return run_open(works, orders);
      }
    }
    if constexpr (Work::kTakesTime) {
      return ClosedLoop<Target, Work, /*kSteered=*/true>(targets_, works, orders, job_.team.halt())
          .run_timed(latencies_);
    } else {
      return orders.steered() ? run_loop<Work, true>(works, orders)
                              : run_loop<Work, false>(works, orders);
    }
  }

  template <typename Work>
  LoopOutcome run_open(std::vector<Work>& works, const LoopOrders& orders) {
    const Point& point = job_.setup.point;
    const auto threads = static_cast<double>(job_.wiring().requesting.size());
    const ArrivalOrders arrivals{
        .arrivals = point.arrivals,
        .rate_per_s = static_cast<double>(point.arrival_rate_per_s) / threads,
        .first_share = number_ / threads};
    OpenLoop<Target, Work> loop(targets_, works, orders, arrivals, job_.team.halt());
    const OpenLoopOutcome outcome = loop.run_timed(latencies_);
    arrived_ = {outcome.arrivals, outcome.arrivals_ns};
    return outcome.loop;
  }

  template <typename Work, bool kSteered>
  LoopOutcome run_loop(std::vector<Work>& works, const LoopOrders& orders) {
    ClosedLoop<Target, Work, kSteered> loop(targets_, works, orders, job_.team.halt());
    return cost_ != nullptr ? loop.run_costed(*cost_) : loop.run_timed(latencies_);
  }

  NodeJob& job_;
  uint32_t number_;
  std::vector<Target*> targets_;
  Works works_;
  Report& report_;
  Phase phase_;
  std::unique_ptr<PollCost> cost_;
  struct {
    uint64_t count = 0;
    uint64_t time_ns = 0;
  } arrived_;                         // in this phase's open loop
  std::vector<Histogram> latencies_;  // by kind
};

}  // namespace verbena::bench
