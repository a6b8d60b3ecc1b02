#include "src/bench/run/responding_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "src/base/runtime.h"
#include "src/bench/run/thread_connection.h"

namespace verbena::bench {

namespace {

// How often a thread that waits for connections asks whether the point has ended.
constexpr int64_t kAcceptTimeoutNs = 20'000'000;

Result<ControlListener> listen(const NodeJob& job, uint32_t requesters) {
  // All requesters may come at once, and wait while this thread connects one of them.
  ControlListenerOptions options;
  options.max_pending = std::max<size_t>(options.max_pending, requesters);
  options.handshake_timeout_ns = kSetupTimeoutNs;
  return ControlListener::listen(job.address, 0, job.secret, options);
}

// Returns early, without all connections, if the point ends.
Status accept_all(NodeJob& job, ControlListener& listener, uint32_t requesters,
                  RespondingTarget& target) {
  const uint64_t start_ns = now_ns();
  for (uint32_t connected = 0; connected < requesters && !job.team.halted();) {
    Result<ControlConnection> accepted = listener.accept(kAcceptTimeoutNs);
    if (!accepted.ok()) {
      if (accepted.status().code() != StatusCode::kTimeout) return accepted.status();
      if (now_ns() - start_ns < uint64_t{kSetupTimeoutNs} * 2) continue;
      return Status(
          StatusCode::kTimeout,
          fmt::format("{} of {} requesters connected within {} s; is the machine overloaded?",
                      connected, requesters, 2 * kSetupTimeoutNs / 1'000'000'000));
    }
    auto control = std::make_unique<ControlConnection>(std::move(*accepted));
    VERBENA_ASSIGN_OR_RETURN(const PairHello hello,
                             control->receive_value<PairHello>(kPairHelloType, kSetupTimeoutNs));
    VERBENA_RETURN_IF_ERROR(target.connect(std::move(control), hello.requesting));
    ++connected;
  }
  return Status::ok_status();
}

Status listen_and_serve(NodeJob& job, uint32_t number, RespondingTarget& target,
                        ThreadReport& report, Step& step) {
  VERBENA_RETURN_IF_ERROR(target.prepare());
  const uint32_t requesters = target.expected_connections(
      static_cast<uint32_t>(job.connections().responding[number].peers.size()));
  {
    VERBENA_ASSIGN_OR_RETURN(ControlListener listener, listen(job, requesters));
    report.address = {job.address, listener.port()};
    job.team.finished();
    if (!job.team.await(StepKind::kConnect, step)) return Status::ok_status();
    VERBENA_RETURN_IF_ERROR(accept_all(job, listener, requesters, target));
  }
  job.team.finished();
  return serve_phases(job.team, step, report.report,
                      [&target](const Step& phase) { return target.answer(phase); });
}

}  // namespace

Status serve_phases(ThreadTeam& team, Step step, Report& report,
                    const std::function<Status(const Step&)>& answer) {
  for (;;) {
    step = team.next(step.number);
    if (step.kind == StepKind::kLeave) return Status::ok_status();
    if (step.kind == StepKind::kPrepare) {
      report = Report{};
      VERBENA_RETURN_IF_ERROR(answer(step));
    } else if (step.kind == StepKind::kEnd) {
      team.finished();
    }
  }
}

void run_responding_steps(NodeJob& job, uint32_t number, std::unique_ptr<RespondingTarget> target,
                          ThreadReport& report) {
  Step step;
  if (!job.team.await(StepKind::kListen, step)) return;
  const Status status = listen_and_serve(job, number, *target, report, step);
  target.reset();
  job.team.end_with(status, step);
}

}  // namespace verbena::bench
