#include "src/bench/request_response/dispatched_threads.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "src/bench/request_response/request_response_settings.h"
#include "src/bench/request_response/request_work.h"
#include "src/bench/request_response/requesting_connections.h"
#include "src/bench/run/request_phases.h"
#include "src/bench/run/responding_steps.h"
#include "src/rpc/designs.h"
#include "verbena/dispatcher.h"

namespace verbena::bench {

namespace {

// NodeJob::dispatch: made by the dispatcher's thread while all connect, used by the workers' later.
struct DispatchBase {
  MarkLayout layout = MarkLayout::kLastBit;  // what the connections use
  std::vector<DispatchWorker*> workers;
};
template <typename Requester>
struct Dispatch : DispatchBase {
  Dispatch(std::unique_ptr<RequestingConnections> made, const DispatcherOptions& options)
      : connections(std::move(made)), dispatcher(connections->targets<Requester>(), options) {
    for (uint32_t worker = 0; worker < options.workers; ++worker) {
      workers.push_back(&dispatcher.worker(worker));
    }
  }

  std::unique_ptr<RequestingConnections> connections;  // outlive the dispatcher
  Dispatcher<Requester> dispatcher;
};

// One worker's view of one responding thread: what a requester is to a thread that has its own.
class DispatchedTarget {
 public:
  DispatchedTarget(DispatchWorker& worker, uint32_t responder, MarkLayout layout)
      : worker_(worker), responder_(responder), layout_(layout) {}

  char* request_buffer(uint32_t slot) { return worker_.request_buffer(responder_, slot); }
  PostResult try_post(uint32_t slot, uint32_t bytes) {
    return worker_.hand_over(responder_, slot, bytes) ? PostResult::kPosted
                                                      : PostResult::kWouldBlock;
  }
  template <typename OnResponse>
  uint32_t poll(OnResponse&& on_response) {
    return worker_.poll_from(responder_, on_response);
  }
  bool wait(int64_t /*timeout_ns*/) { return false; }
  Status status() const {
    if (worker_.failed() == 0) return Status::ok_status();
    return Status(StatusCode::kUnavailable, "a connection of the node's dispatcher broke");
  }
  MarkLayout mark_layout() const { return layout_; }

 private:
  DispatchWorker& worker_;
  uint32_t responder_;
  MarkLayout layout_;
};

// Carries requests until the phase ends; with `cost`, that measures each poll.
template <typename Requester>
Status carry(NodeJob& job, Dispatcher<Requester>& dispatcher, PollCost* cost) {
  constexpr uint32_t kIdlePollsPerCheck = 64;
  Waiter waiter;
  uint32_t idle_polls = 0;
  while (!job.team.halted()) {
    if (poll_costed(cost, dispatcher) > 0) {
      waiter.progress();
      continue;
    }
    waiter.idle();
    if (++idle_polls % kIdlePollsPerCheck != 0) continue;
    for (const Requester* requester : dispatcher.requesters()) {
      VERBENA_RETURN_IF_ERROR(requester->status());
    }
  }
  return Status::ok_status();
}

void report_cost(const PollCost& cost, Report& report) {
  if (std::optional<CpuCost> moved = cost.per_message()) {
    // Each message is moved twice, as a request and as a response.
    moved->cycles *= 2;
    if (moved->instructions) *moved->instructions *= 2;
    report.dispatcher_costs = {{*moved, cost.messages() / 2}};
  }
}

template <typename Requester>
Status serve_workers(NodeJob& job, Dispatch<Requester>& dispatch, Report& report,
                     const Step& step) {
  return serve_phases(job.team, step, report, [&](const Step& phase) {
    std::unique_ptr<PollCost> cost;
    if (phase.phase.kind == PhaseKind::kCost) cost = std::make_unique<PollCost>(Side::kDispatcher);
    const uint64_t resent_before = dispatch.connections->resent();
    job.team.finished();
    const Status status = carry(job, dispatch.dispatcher, cost.get());
    report.counters[kResent] = dispatch.connections->resent() - resent_before;
    if (cost != nullptr && status.ok()) report_cost(*cost, report);
    return status;
  });
}

Status connect_and_dispatch(NodeJob& job, uint32_t number, ThreadReport& report, const Step& step) {
  auto connections = std::make_unique<RequestingConnections>();
  VERBENA_RETURN_IF_ERROR(connections->connect(job, number));
  const rpc::DesignAgreement agreed = connections->agreed();
  return rpc::with_transport(
      agreed.transport, agreed.protocol, agreed.layout, [&]<typename Design>() -> Status {
        auto dispatch = std::make_shared<Dispatch<typename Design::Requester>>(
            std::move(connections), DispatcherOptions{.workers = job.node().requesting,
                                                      .pending = job.setup.point.pending});
        dispatch->layout = agreed.layout;
        job.shared = std::static_pointer_cast<DispatchBase>(dispatch);
        job.team.finished();
        return serve_workers(job, *dispatch, report.report, step);
      });
}

// From the first phase on: all have connected then.
template <bool kReads>
void serve_worker(NodeJob& job, uint32_t number, ThreadReport& report, const Step& step) {
  const DispatchBase& dispatch = *static_cast<DispatchBase*>(job.shared.get());
  const uint32_t worker = number - job.node().first_requesting;
  const uint32_t dispatcher = job.connections().nodes[job.setup.node].first_requesting;
  const std::vector<uint32_t>& reached = job.connections().requesting[dispatcher].peers;
  const std::vector<uint32_t>& wanted = job.wiring().requesting[number].peers;
  std::vector<DispatchedTarget> views;
  views.reserve(wanted.size());
  std::vector<DispatchedTarget*> targets;
  for (const uint32_t peer : wanted) {
    const auto at = std::find(reached.begin(), reached.end(), peer) - reached.begin();
    views.emplace_back(*dispatch.workers[worker], static_cast<uint32_t>(at), dispatch.layout);
    targets.push_back(&views.back());
  }
  RequestPhases<DispatchedTarget, RequestWorks<kReads>> phases(
      job, number, std::move(targets),
      RequestWorks<kReads>(job, dispatcher, worker * job.setup.point.pending, wanted),
      report.report);
  phases.serve(step);
}

}  // namespace

void run_dispatcher_thread(NodeJob& job, uint32_t number, ThreadReport& report) {
  Step step;
  if (!job.team.await(StepKind::kConnect, step)) return;
  job.team.end_with(connect_and_dispatch(job, number, report, step), step);
}

void run_worker_thread(NodeJob& job, uint32_t number, ThreadReport& report) {
  Step step;
  if (!job.team.await(StepKind::kConnect, step)) return;
  const uint64_t connect_number = step.number;
  job.team.finished();
  step = job.team.next(step.number);
  if (step.kind == StepKind::kLeave) return;
  // The loop takes the step that was waited for as its first.
  step.number = connect_number;
  if (request_response_settings(job.setup.point).protocol == Protocol::kRead) {
    serve_worker<true>(job, number, report, step);
  } else {
    serve_worker<false>(job, number, report, step);
  }
}

}  // namespace verbena::bench
