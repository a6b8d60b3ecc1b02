#include "src/bench/verbs/verbs_threads.h"

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "src/bench/load/poll_cost.h"
#include "src/bench/run/request_phases.h"
#include "src/bench/run/thread_connection.h"
#include "src/bench/verbs/mark_poller.h"
#include "src/bench/verbs/verbs_connection.h"
#include "src/bench/verbs/verbs_requester.h"
#include "src/bench/verbs/verbs_settings.h"
#include "verbena/data_path.h"

namespace verbena::bench {

namespace {

constexpr int64_t kAcceptLookNs = 20'000'000;

// False: the team leaves before that.
bool await(ThreadTeam& team, StepKind kind, Step& step) {
  while (step.kind != kind && step.kind != StepKind::kLeave) step = team.next(step.number);
  return step.kind == kind;
}

// Reports why the thread takes no further part, and waits for the others.
void end_with(ThreadTeam& team, Step& step, const Status& status) {
  if (status.ok()) return;
  team.failed(status);
  await(team, StepKind::kLeave, step);
}

template <typename Target>
void serve_phases(NodeJob& job, uint32_t number, ThreadReport& report, const Step& step,
                  Target& target) {
  RequestPhases<Target, NoPayloads> phases(job, number, {&target}, NoPayloads(), report.report);
  job.team.finished();
  phases.serve(step);
}

Status connect_and_serve(NodeJob& job, uint32_t number, ThreadReport& report, const Step& step) {
  const Point& point = job.setup.point;
  VERBENA_ASSIGN_OR_RETURN(const auto control,
                           reach(job, number, job.wiring().requesting[number].peers.front()));
  VERBENA_ASSIGN_OR_RETURN(VerbsConnection connection, connect_verbs(job.device, job.domain, point,
                                                                     /*responds=*/false, *control));
  if (verbs_settings(point).operation == Operation::kPoll) {
    MarkPoller poller(point, std::move(connection));
    serve_phases(job, number, report, step, poller);
  } else {
    VerbsRequester requester(point, std::move(connection), job.setup.seed + number);
    serve_phases(job, number, report, step, requester);
  }
  return Status::ok_status();
}

class VerbsRespondingThread {
 public:
  VerbsRespondingThread(NodeJob& job, ThreadReport& report) : job_(job), report_(report) {}

  Status listen() {
    ControlListenerOptions options;
    options.handshake_timeout_ns = kSetupTimeoutNs;
    VERBENA_ASSIGN_OR_RETURN(listener_,
                             ControlListener::listen(job_.address, 0, job_.secret, options));
    report_.address = {job_.address, listener_->port()};
    job_.team.finished();
    return Status::ok_status();
  }

  Status accept() {
    const uint64_t start_ns = now_ns();
    while (!control_ && !halted()) {
      Result<ControlConnection> accepted = listener_->accept(kAcceptLookNs);
      if (accepted.ok()) {
        control_.emplace(std::move(*accepted));
      } else if (accepted.status().code() != StatusCode::kTimeout) {
        return accepted.status();
      } else if (now_ns() - start_ns > uint64_t{kSetupTimeoutNs} * 2) {
        return Status(StatusCode::kTimeout,
                      fmt::format("no requester connected within {} s; is the machine overloaded?",
                                  2 * kSetupTimeoutNs / 1'000'000'000));
      }
    }
    if (!control_) return Status::ok_status();
    VERBENA_RETURN_IF_ERROR(
        control_->receive_value<PairHello>(kPairHelloTag, kSetupTimeoutNs).status());
    VERBENA_ASSIGN_OR_RETURN(connection_, connect_verbs(job_.device, job_.domain, job_.setup.point,
                                                        /*responds=*/true, *control_));
    received_ = connection_->receives;
    listener_.reset();
    return Status::ok_status();
  }

  // Serves phases until the team leaves.
  Status serve(Step step) {
    job_.team.finished();
    for (;;) {
      step = job_.team.next(step.number);
      if (step.kind == StepKind::kLeave) return Status::ok_status();
      if (step.kind == StepKind::kPrepare) {
        report_.report = Report{};
        const bool receives = verbs_settings(job_.setup.point).operation == Operation::kSend;
        // One-sided verbs cost nothing here, in any unit.
        if (!receives) report_.report.costs = {{CpuCost{}, 0}};
        job_.team.finished();
        if (receives) VERBENA_RETURN_IF_ERROR(receive(step.phase));
      } else if (step.kind == StepKind::kEnd) {
        job_.team.finished();
      }
    }
  }

 private:
  bool halted() const { return job_.team.halt().load(std::memory_order_relaxed); }

  // Takes what comes and posts as many receives again, until the phase ends.
  Status receive(const Phase& phase) {
    std::unique_ptr<PollCost> cost;
    if (phase.kind == PhaseKind::kCost) cost = std::make_unique<PollCost>(Side::kResponder);
    Status status;
    Waiter waiter;
    while (!halted() && status.ok()) {
      const uint32_t found =
          cost != nullptr ? cost->measure([&] { return poll(&status); }) : poll(&status);
      if (found > 0) {
        report_.report.requests += found;
        waiter.progress();
      } else {
        waiter.idle();
      }
    }
    if (cost != nullptr && cost->per_message()) {
      report_.report.costs = {{*cost->per_message(), cost->messages()}};
    }
    return status;
  }

  uint32_t poll(Status* status) {
    constexpr int kPolledAtOnce = 16;
    ibv_wc completions[kPolledAtOnce];
    const int polled = poll_completions(connection_->endpoint.receive_completions->get(),
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
                   "the queue pair refuses a receive in place of one that "
                   "it has just completed"};
        return 0;
      }
    }
    return polled > 0 ? static_cast<uint32_t>(polled) : 0;
  }

  NodeJob& job_;
  ThreadReport& report_;
  std::optional<ControlListener> listener_;
  std::optional<ControlConnection> control_;
  std::optional<VerbsConnection> connection_;
  uint64_t received_ = 0;
};

}  // namespace

void run_verbs_requesting_thread(NodeJob& job, uint32_t number, ThreadReport& report) {
  Step step;
  if (!await(job.team, StepKind::kConnect, step)) return;
  end_with(job.team, step, connect_and_serve(job, number, report, step));
}

void run_verbs_responding_thread(NodeJob& job, uint32_t /*number*/, ThreadReport& report) {
  Step step;
  if (!await(job.team, StepKind::kListen, step)) return;
  VerbsRespondingThread thread(job, report);
  Status status = thread.listen();
  if (status.ok()) {
    if (!await(job.team, StepKind::kConnect, step)) return;
    status = thread.accept();
  }
  if (status.ok()) status = thread.serve(step);
  end_with(job.team, step, status);
}

}  // namespace verbena::bench
