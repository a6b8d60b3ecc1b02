#include "src/bench/requesting_thread.h"

#include <fmt/format.h>

#include <memory>
#include <type_traits>
#include <utility>

#include "src/base/histogram.h"
#include "src/bench/closed_loop.h"
#include "src/bench/request_work.h"
#include "src/rpc/designs.h"
#include "src/rpc/requester_control.h"

namespace verbena::bench {

namespace {

RequesterOptions options_of(const Point& point) {
  RequesterOptions options;
  options.request_max_bytes = point.request_bytes;
  options.response_max_bytes = point.response_bytes;
  options.pending = point.pending;
  options.handshake_timeout_ns = kSetupTimeoutNs;
  return options;
}

// The control connection to a responding thread, which knows then who comes.
Result<std::unique_ptr<ControlConnection>> reach(const NodeJob& job, uint32_t number,
                                                 uint32_t responding) {
  const ThreadAddress& address = job.addresses[responding];
  VERBENA_ASSIGN_OR_RETURN(
      ControlConnection control,
      ControlConnection::connect(address.host, address.port, job.secret, kSetupTimeoutNs));
  VERBENA_RETURN_IF_ERROR(control.send_value(kPairHelloTag, PairHello{number}));
  return std::make_unique<ControlConnection>(std::move(control));
}

template <typename Design>
class RequestingThread {
  using Requester = typename Design::Requester;
  static constexpr bool kReads = std::is_same_v<Requester, rpc::ReadRequester>;

 public:
  RequestingThread(NodeJob& job, uint32_t number, ThreadReport& report)
      : job_(job), number_(number), report_(report.report) {}

  // Connects to one responding thread after another; the first connection is there already.
  Status connect(std::unique_ptr<ControlConnection> first, const rpc::Terms& first_terms) {
    const RequesterOptions options = options_of(job_.setup.point);
    for (const uint32_t peer : peers()) {
      if (job_.team.halt().load(std::memory_order_relaxed)) break;
      rpc::Terms agreed = first_terms;
      std::unique_ptr<ControlConnection> control = std::move(first);
      if (control == nullptr) {
        VERBENA_ASSIGN_OR_RETURN(control, reach(job_, number_, peer));
        VERBENA_ASSIGN_OR_RETURN(agreed, rpc::propose_design(Design::kProtocol, Design::kLayout,
                                                             job_.device, *control, options));
      }
      VERBENA_ASSIGN_OR_RETURN(
          auto requester, Requester::connect(job_.device, job_.domain, *control, options, agreed));
      controls_.push_back(std::move(control));
      targets_.push_back(requester.get());
      requesters_.push_back(std::move(requester));
    }
    return Status::ok_status();
  }

  // Serves phases until the team leaves.
  void serve(Step step) {
    job_.team.finished();
    for (;;) {
      step = job_.team.next(step.number);
      if (step.kind == StepKind::kLeave) return;
      if (step.kind == StepKind::kPrepare) {
        phase_ = step.phase;
        cost_ = phase_.kind == PhaseKind::kCost ? std::make_unique<PollCost>() : nullptr;
        latency_ = std::make_unique<Histogram>();
        report_ = Report{};
        job_.team.finished();
      } else if (step.kind == StepKind::kRun) {
        run(step);
      }
    }
  }

 private:
  const std::vector<uint32_t>& peers() const { return job_.wiring.requesting[number_].peers; }

  void run(const Step& step) {
    const Point& point = job_.setup.point;
    LoopOrders orders;
    orders.pending = point.pending;
    orders.length = phase_.length;
    orders.begin_ns = step.begin_ns;
    orders.random_target = job_.wiring.random_peer;
    orders.active_ppm = point.active_ppm;
    orders.think_ns = point.think_ns;
    orders.seed = job_.setup.seed + number_ * 0x9e3779b97f4a7c15u + phase_.number;
    const bool verify = phase_.verify || phase_.kind == PhaseKind::kWarmUp;
    const LoopOutcome outcome = verify ? run_checked<true>(orders) : run_checked<false>(orders);

    report_.requests = outcome.completed;
    report_.unanswered = outcome.unanswered;
    report_.mismatches = outcome.mismatches;
    report_.first_ns = outcome.first_ns - std::min(step.begin_ns, outcome.first_ns);
    report_.last_ns = outcome.last_ns - std::min(step.begin_ns, outcome.last_ns);
    report_.layout = targets_.front()->mark_layout();
    if (cost_ != nullptr && cost_->per_message()) {
      report_.costs = {{*cost_->per_message(), cost_->messages()}};
    }
    const LoopClock clock;
    latency_->for_each_bucket([&](uint64_t first, uint64_t last, uint64_t count) {
      first = std::max(first, latency_->min());
      last = std::min(last, latency_->max());
      report_.latencies.push_back(
          {static_cast<uint64_t>(clock.to_ns(first + (last - first) / 2)), count});
    });
    if (outcome.status.ok()) {
      job_.team.finished();
    } else {
      job_.team.failed(outcome.status);
    }
  }

  template <bool kVerify>
  LoopOutcome run_checked(const LoopOrders& orders) {
    const Point& point = job_.setup.point;
    if constexpr (kReads) {
      std::vector<ReadWork<kVerify>> works;
      for (const uint32_t peer : peers()) {
        works.emplace_back(point, pair_key(job_.setup.run_key, 0, 0, peer));
      }
      return run_works<ReadWork<kVerify>>(works, orders);
    } else {
      std::vector<MessageWork<kVerify>> works;
      for (const uint32_t peer : peers()) {
        works.emplace_back(point, pair_key(job_.setup.run_key, phase_.number, number_, peer));
      }
      return run_works<MessageWork<kVerify>>(works, orders);
    }
  }

  template <typename Work>
  LoopOutcome run_works(std::vector<Work>& works, const LoopOrders& orders) {
    return orders.steered() ? run_loop<Work, true>(works, orders)
                            : run_loop<Work, false>(works, orders);
  }

  template <typename Work, bool kSteered>
  LoopOutcome run_loop(std::vector<Work>& works, const LoopOrders& orders) {
    ClosedLoop<Requester, Work, kSteered> loop(targets_, works, orders, job_.team.halt());
    return cost_ != nullptr ? loop.run_costed(*cost_) : loop.run_timed(*latency_);
  }

  NodeJob& job_;
  uint32_t number_;
  Report& report_;
  std::vector<std::unique_ptr<ControlConnection>> controls_;  // outlive their requesters
  std::vector<std::unique_ptr<Requester>> requesters_;
  std::vector<Requester*> targets_;
  Phase phase_;
  std::unique_ptr<PollCost> cost_;
  std::unique_ptr<Histogram> latency_;
};

Status connect_and_serve(NodeJob& job, uint32_t number, ThreadReport& report, const Step& step) {
  const Point& point = job.setup.point;
  VERBENA_ASSIGN_OR_RETURN(auto control,
                           reach(job, number, job.wiring.requesting[number].peers.front()));
  VERBENA_ASSIGN_OR_RETURN(
      const rpc::Terms agreed,
      rpc::propose_design(point.protocol, point.layout, job.device, *control, options_of(point)));
  return rpc::with_design_point(point.protocol, agreed.layout, [&]<typename Design>() -> Status {
    RequestingThread<Design> thread(job, number, report);
    VERBENA_RETURN_IF_ERROR(thread.connect(std::move(control), agreed));
    thread.serve(step);
    return Status::ok_status();
  });
}

}  // namespace

void run_requesting_thread(NodeJob& job, uint32_t number, ThreadReport& report) {
  Step step;
  while (step.kind != StepKind::kConnect && step.kind != StepKind::kLeave) {
    step = job.team.next(step.number);
  }
  if (step.kind == StepKind::kLeave) return;
  const Status status = connect_and_serve(job, number, report, step);
  if (status.ok()) return;
  job.team.failed(status);
  while (step.kind != StepKind::kLeave) step = job.team.next(step.number);
}

}  // namespace verbena::bench
