#include "src/bench/verbs/verbs_threads.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "src/bench/load/poll_cost.h"
#include "src/bench/run/request_phases.h"
#include "src/bench/run/responding_steps.h"
#include "src/bench/run/thread_connection.h"
#include "src/bench/verbs/mark_poller.h"
#include "src/bench/verbs/peers_requester.h"
#include "src/bench/verbs/verbs_connection.h"
#include "src/bench/verbs/verbs_requester.h"
#include "src/bench/verbs/verbs_settings.h"
#include "verbena/data_path.h"

namespace verbena::bench {

namespace {

bool counts_messages(const Point& point) {
  const VerbsSettings& verbs = verbs_settings(point);
  return verbs.operation == Operation::kSend && verbs.transport != Transport::kRc;
}

// Where messages may be lost: how many there were since both sides are connected. What one phase
// leaves under way arrives in the next.
struct CountedMessages : NoPayloads {
  PeersRequester* requester;
  Status ended(Report& report) {
    report.counters[kSentMessages] = requester->posted();
    return Status::ok_status();
  }
};

template <typename Target, typename Works = NoPayloads>
void serve_requests(NodeJob& job, uint32_t number, ThreadReport& report, const Step& step,
                    Target& target, Works works = Works()) {
  RequestPhases<Target, Works> phases(job, number, {&target}, works, report.report);
  job.team.finished();
  phases.serve(step);
}

Status connect_peers_and_serve(NodeJob& job, uint32_t number, ThreadReport& report,
                               const Step& step) {
  const Point& point = job.setup.point;
  PeerConnections peers;
  // An error flushes no more than what is pending.
  VERBENA_ASSIGN_OR_RETURN(CompletionQueue completions,
                           CompletionQueue::create(job.device, {.depth_cqes = point.pending}));
  peers.completions = std::make_unique<CompletionQueue>(std::move(completions));
  std::vector<std::unique_ptr<ControlConnection>> controls;
  for (const uint32_t peer : job.wiring().requesting[number].peers) {
    VERBENA_ASSIGN_OR_RETURN(auto control, reach(job, number, peer));
    VERBENA_ASSIGN_OR_RETURN(VerbsConnection connection,
                             connect_peer(job.device, job.domain, point, *peers.completions,
                                          peers.connections.empty(), *control));
    peers.connections.push_back(std::move(connection));
    controls.push_back(std::move(control));
  }
  PeersRequester requester(point, std::move(peers), job.setup.seed + number);
  if (counts_messages(point)) {
    CountedMessages works;
    works.requester = &requester;
    serve_requests(job, number, report, step, requester, works);
  } else {
    serve_requests(job, number, report, step, requester);
  }
  return Status::ok_status();
}

Status connect_and_serve(NodeJob& job, uint32_t number, ThreadReport& report, const Step& step) {
  const Point& point = job.setup.point;
  if (verbs_settings(point).takes_turns()) {
    return connect_peers_and_serve(job, number, report, step);
  }
  VERBENA_ASSIGN_OR_RETURN(const auto control,
                           reach(job, number, job.wiring().requesting[number].peers.front()));
  VERBENA_ASSIGN_OR_RETURN(VerbsConnection connection, connect_verbs(job.device, job.domain, point,
                                                                     /*responds=*/false, *control));
  if (verbs_settings(point).operation == Operation::kPoll) {
    MarkPoller poller(point, std::move(connection));
    serve_requests(job, number, report, step, poller);
  } else {
    VerbsRequester requester(point, std::move(connection), job.setup.seed + number);
    serve_requests(job, number, report, step, requester);
  }
  return Status::ok_status();
}

class VerbsRespondingThread final : public RespondingTarget {
 public:
  VerbsRespondingThread(NodeJob& job, ThreadReport& report) : job_(job), report_(report) {}

  Status prepare() override { return Status::ok_status(); }

  Status connect(std::unique_ptr<ControlConnection> control, uint32_t /*requesting*/) override {
    control_ = std::move(control);
    VERBENA_ASSIGN_OR_RETURN(connection_, connect_verbs(job_.device, job_.domain, job_.setup.point,
                                                        /*responds=*/true, *control_));
    received_ = connection_->receives;
    return Status::ok_status();
  }

  Status answer(const Step& step) override {
    const bool receives = verbs_settings(job_.setup.point).operation == Operation::kSend;
    // One-sided verbs cost nothing here, in any unit.
    if (!receives) report_.report.costs = {{CpuCost{}, 0}};
    job_.team.finished();
    return receives ? receive(step.phase) : Status::ok_status();
  }

 private:
  // Takes what comes and posts as many receives again, until the phase ends.
  Status receive(const Phase& phase) {
    std::unique_ptr<PollCost> cost;
    if (phase.kind == PhaseKind::kCost) cost = std::make_unique<PollCost>(Side::kResponder);
    Status status;
    Waiter waiter;
    while (!job_.team.halted() && status.ok()) {
      const uint32_t found =
          cost != nullptr ? cost->measure([&] { return poll(&status); }) : poll(&status);
      if (found > 0) {
        report_.report.requests += found;
        waiter.progress();
      } else {
        waiter.idle();
      }
    }
    // The phase may be over before this thread had a CPU: what came is still there.
    if (cost != nullptr && cost->messages() == 0) {
      report_.report.requests += cost->measure([&] { return poll(&status); });
    }
    if (counts_messages(job_.setup.point)) {
      report_.report.counters[kArrivedMessages] = received_ - connection_->receives;
    }
    if (cost != nullptr && cost->per_message()) {
      report_.report.costs = {{*cost->per_message(), cost->messages()}};
    }
    return status;
  }

  uint32_t poll(Status* status) {
    constexpr int kPolledAtOnce = 16;
    ibv_wc completions[kPolledAtOnce];
    const int polled = poll_completions(connection_->endpoint.receive_completions.get(),
                                        kPolledAtOnce, completions);
    for (int i = 0; i < polled; ++i) {
      if (completions[i].status != IBV_WC_SUCCESS) {
        // The other side has ended its queue pair: that it is gone, others tell.
        if (completions[i].status == IBV_WC_WR_FLUSH_ERR) return 0;
        *status = {StatusCode::kUnavailable, explain_completion_error(completions[i].status)};
        return 0;
      }
      if (!post_receive(*connection_, job_.setup.point, received_++)) {
        *status = {StatusCode::kInternal,
                   "the queue pair refuses to repost a receive that it has just completed"};
        return 0;
      }
    }
    return polled > 0 ? static_cast<uint32_t>(polled) : 0;
  }

  NodeJob& job_;
  ThreadReport& report_;
  std::unique_ptr<ControlConnection> control_;
  std::optional<VerbsConnection> connection_;
  uint64_t received_ = 0;
};

}  // namespace

void run_verbs_requesting_thread(NodeJob& job, uint32_t number, ThreadReport& report) {
  Step step;
  if (!job.team.await(StepKind::kConnect, step)) return;
  job.team.end_with(connect_and_serve(job, number, report, step), step);
}

void run_verbs_responding_thread(NodeJob& job, uint32_t number, ThreadReport& report) {
  run_responding_steps(job, number, std::make_unique<VerbsRespondingThread>(job, report), report);
}

}  // namespace verbena::bench
