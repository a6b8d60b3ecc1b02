#include "src/bench/run/request_phases_base.h"

#include <algorithm>
#include <atomic>

#include "src/base/runtime.h"
#include "src/bench/experiment/workload.h"
#include "src/bench/run/stream_seed.h"

namespace verbena::bench {

void RequestPhasesBase::serve(Step step) {
  for (;;) {
    step = job_.team.next(step.number);
    if (step.kind == StepKind::kLeave) return;
    if (step.kind == StepKind::kPrepare) {
      phase_ = step.phase;
      prepare_phase();
    } else if (step.kind == StepKind::kRun) {
      run(step);
    }
  }
}

void RequestPhasesBase::prepare_phase() {
  cost_ = phase_.kind == PhaseKind::kCost ? std::make_unique<PollCost>(Side::kRequester) : nullptr;
  const auto kinds = job_.setup.point.workload->traits().kinds;
  latencies_.clear();
  latencies_.resize(std::max<size_t>(kinds.size(), 1));
  report_ = Report{};
  if (const Status prepared = prepare(); prepared.ok()) {
    job_.team.finished();
  } else {
    job_.team.failed(prepared);
  }
}

LoopOrders RequestPhasesBase::orders(const Step& step) const {
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
  orders.activity = &job_.activity[number_ - job_.node().first_requesting].count;
  orders.seed = stream_seed(job_.setup.seed, number_) + phase_.number;
  return orders;
}

void RequestPhasesBase::run(const Step& step) {
  const Point& point = job_.setup.point;
  const LoopOrders orders = this->orders(step);
  OpenLoopOutcome open;
  LoopOutcome& outcome = open.loop;
  // What is not timed warms up or counts instructions, as fast as it can.
  if (may_arrive() && point.arrival_rate_per_s > 0 && phase_.kind == PhaseKind::kTimed) {
    const auto threads = static_cast<double>(job_.wiring().requesting.size());
    open = run_open(orders, {.arrivals = point.arrivals,
                             .rate_per_s = static_cast<double>(point.arrival_rate_per_s) / threads,
                             .first_share = number_ / threads});
  } else {
    outcome = run_closed(orders);
  }
  if (outcome.status.ok() && orders.settle_ns == 0 && complete()) outcome.last_ns = now_ns();
  orders.activity->store(0, std::memory_order_relaxed);

  report_.requests = outcome.completed;
  report_.unanswered = outcome.unanswered;
  report_.mismatches = outcome.mismatches;
  report_.arrivals = open.arrivals;
  report_.arrivals_ns = open.arrivals_ns;
  report_.first_ns = outcome.first_ns - std::min(step.begin_ns, outcome.first_ns);
  report_.last_ns = outcome.last_ns - std::min(step.begin_ns, outcome.last_ns);
  report_.layout = mark_layout();
  if (cost_ != nullptr && cost_->per_message()) {
    report_.costs = {{*cost_->per_message(), cost_->messages()}};
  }
  report_latencies();
  const Status ended = this->ended(report_);
  if (outcome.status.ok() && ended.ok()) {
    job_.team.finished();
  } else {
    job_.team.failed(outcome.status.ok() ? ended : outcome.status);
  }
}

void RequestPhasesBase::report_latencies() {
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
}

}  // namespace verbena::bench
