#include "src/bench/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "src/base/histogram.h"
#include "src/base/runtime.h"
#include "src/bench/closed_loop.h"
#include "src/bench/messages.h"
#include "src/bench/request_work.h"
#include "src/rpc/designs.h"
#include "src/rpc/requester_control.h"

namespace verbena::bench {

namespace {

constexpr int64_t kAnswerTimeoutNs = 10'000'000'000;
// Long enough for caches, page tables and the processor's clock; short beside a run.
constexpr uint64_t kWarmUpNs = 20'000'000;
constexpr uint64_t kCostNs = 10'000'000;

struct PhaseOutcome {
  LoopOutcome loop;
  Report responder;
};

// What went wrong, as one line with both sides' view of it.
Status with_number_of_wrong_payloads(const PhaseOutcome& outcome) {
  return Status(StatusCode::kProtocolViolation,
                fmt::format("{} requests and {} responses arrived with other bytes than were sent",
                            outcome.responder.mismatches, outcome.loop.mismatches));
}

template <typename Requester>
class PhaseRunner {
 public:
  PhaseRunner(Requester& requester, ControlConnection& control, const Point& point,
              uint64_t run_key)
      : requester_(requester), control_(control), point_(point), run_key_(run_key) {}

  // Every byte is checked, whatever the user asked for: numbers of messages that do not arrive
  // whole mean nothing. Each slot is used at least twice, so that all memory was touched.
  Status warm_up(const RunLength& measured) {
    RunLength length;
    length.duration_ns = std::min(kWarmUpNs, measured.duration_ns);
    length.requests = std::max<uint64_t>(std::min<uint64_t>(measured.requests, 10'000),
                                         uint64_t{2} * point_.pending);
    auto unused = std::make_unique<Histogram>();
    VERBENA_ASSIGN_OR_RETURN(const PhaseOutcome outcome,
                             run(PhaseKind::kWarmUp, /*verify=*/true, length,
                                 [&](auto& loop) { return loop.run_timed(*unused); }));
    VERBENA_RETURN_IF_ERROR(outcome.loop.status);
    if (outcome.loop.mismatches > 0 || outcome.responder.mismatches > 0) {
      return with_number_of_wrong_payloads(outcome);
    }
    return Status::ok_status();
  }

  Status measure_cost(const RunLength& measured, RunResult* result) {
    RunLength length;
    length.duration_ns = std::min(kCostNs, measured.duration_ns);
    length.requests = std::max<uint64_t>(measured.requests, point_.pending);
    auto cost = std::make_unique<PollCost>();
    VERBENA_ASSIGN_OR_RETURN(const PhaseOutcome outcome,
                             run(PhaseKind::kCost, /*verify=*/false, length,
                                 [&](auto& loop) { return loop.run_costed(*cost); }));
    VERBENA_RETURN_IF_ERROR(outcome.loop.status);
    result->requester_cost = cost->per_message();
    result->responder_cost = outcome.responder.cost;
    if (result->responder_cost && result->requester_cost &&
        result->responder_cost->per_message == 0) {
      result->responder_cost->unit = result->requester_cost->unit;  // nothing, in any unit
    }
    return Status::ok_status();
  }

  Status measure(const RunOptions& options, RunResult* result) {
    auto latency = std::make_unique<Histogram>();
    VERBENA_ASSIGN_OR_RETURN(const PhaseOutcome outcome,
                             run(PhaseKind::kTimed, options.verify, options.length,
                                 [&](auto& loop) { return loop.run_timed(*latency); }));
    const LoopClock clock;
    const LoopOutcome& loop = outcome.loop;
    lost_ = loop.unanswered;
    VERBENA_RETURN_IF_ERROR(loop.status);
    result->requests = loop.completed;
    result->errors = loop.mismatches + outcome.responder.mismatches;
    result->rate_per_s = static_cast<double>(loop.completed) / loop.elapsed_ns * 1e9;
    result->p50_ns = clock.to_ns(latency->quantile(0.5));
    result->p99_ns = clock.to_ns(latency->quantile(0.99));
    result->p999_ns = clock.to_ns(latency->quantile(0.999));
    return Status::ok_status();
  }

  uint64_t lost() const { return lost_; }

 private:
  template <typename RunLoop>
  Result<PhaseOutcome> run(PhaseKind kind, bool verify, const RunLength& length,
                           RunLoop&& run_loop) {
    const uint64_t number = ++phases_;
    VERBENA_RETURN_IF_ERROR(
        send_message(control_, {.kind = MessageKind::kPhase,
                                .phase = {.kind = kind, .verify = verify, .number = number}}));
    VERBENA_RETURN_IF_ERROR(
        expect_message(control_, MessageKind::kBegun, kAnswerTimeoutNs).status());
    PhaseOutcome outcome;
    outcome.loop = verify ? run_checked<true>(number, length, run_loop)
                          : run_checked<false>(number, length, run_loop);
    lost_ = outcome.loop.unanswered;
    if (!outcome.loop.status.ok()) return outcome;
    VERBENA_RETURN_IF_ERROR(send_message(control_, {.kind = MessageKind::kEndOfPhase}));
    VERBENA_ASSIGN_OR_RETURN(const Message message,
                             expect_message(control_, MessageKind::kReport, kAnswerTimeoutNs));
    outcome.responder = message.report;
    return outcome;
  }

  template <bool kVerify, typename RunLoop>
  LoopOutcome run_checked(uint64_t number, const RunLength& length, RunLoop&& run_loop) {
    if constexpr (std::is_same_v<Requester, rpc::ReadRequester>) {
      return run_work(ReadWork<kVerify>(point_, run_key_), length, run_loop);
    } else {
      return run_work(MessageWork<kVerify>(point_, run_key_ + number), length, run_loop);
    }
  }

  template <typename Work, typename RunLoop>
  LoopOutcome run_work(Work work, const RunLength& length, RunLoop&& run_loop) {
    ClosedLoop<Requester, Work> loop(requester_, control_, work, point_, length);
    return run_loop(loop);
  }

  Requester& requester_;
  ControlConnection& control_;
  const Point& point_;
  uint64_t run_key_;
  uint64_t phases_ = 0;
  uint64_t lost_ = 0;
};

template <typename Design>
Result<RunResult> run_design(const Device& device, const ProtectionDomain& domain,
                             ControlConnection& control, const Point& point,
                             const RunOptions& options, uint64_t run_key,
                             const RequesterOptions& requester_options, const rpc::Terms& agreed,
                             uint64_t* lost) {
  VERBENA_ASSIGN_OR_RETURN(auto requester, Design::Requester::connect(device, domain, control,
                                                                      requester_options, agreed));
  RunResult result;
  result.layout = requester->mark_layout();
  PhaseRunner runner(*requester, control, point, run_key);
  const Status status = [&]() -> Status {
    VERBENA_RETURN_IF_ERROR(runner.warm_up(options.length));
    VERBENA_RETURN_IF_ERROR(runner.measure_cost(options.length, &result));
    return runner.measure(options, &result);
  }();
  *lost = runner.lost();
  VERBENA_RETURN_IF_ERROR(status);
  return result;
}

Result<RunResult> set_up_and_run(const Device& device, const ProtectionDomain& domain,
                                 ControlConnection& control, const Point& point,
                                 const RunOptions& options, uint64_t* lost) {
  uint64_t run_key = 0;
  secure_random(&run_key, sizeof(run_key));
  VERBENA_RETURN_IF_ERROR(send_message(
      control, {.kind = MessageKind::kSetup, .setup = {.point = point, .run_key = run_key}}));
  VERBENA_RETURN_IF_ERROR(expect_message(control, MessageKind::kReady, kSetupTimeoutNs).status());

  RequesterOptions requester_options;
  requester_options.request_max_bytes = point.request_bytes;
  requester_options.response_max_bytes = point.response_bytes;
  requester_options.pending = point.pending;
  requester_options.handshake_timeout_ns = kSetupTimeoutNs;
  VERBENA_ASSIGN_OR_RETURN(
      const rpc::Terms agreed,
      rpc::propose_design(point.protocol, point.layout, device, control, requester_options));
  return rpc::with_design_point(point.protocol, agreed.layout, [&]<typename Design>() {
    return run_design<Design>(device, domain, control, point, options, run_key, requester_options,
                              agreed, lost);
  });
}

// Ends the point on the responder's side. What it has to say about a failure is in `theirs`.
Status tear_down(ControlConnection& control, Status* theirs) {
  VERBENA_RETURN_IF_ERROR(send_message(control, {.kind = MessageKind::kTearDown}));
  for (;;) {
    VERBENA_ASSIGN_OR_RETURN(Message message, receive_message(control, kAnswerTimeoutNs));
    if (message.kind == MessageKind::kDone) return Status::ok_status();
    // Else it was on its way when this side failed.
    if (message.kind == MessageKind::kFailed) *theirs = Status(message.code, message.cause);
  }
}

}  // namespace

Result<RunResult> run_point(const Device& device, const ProtectionDomain& domain,
                            ControlConnection& control, const Point& point,
                            const RunOptions& options, uint64_t* lost) {
  *lost = 0;
  Result<RunResult> result = set_up_and_run(device, domain, control, point, options, lost);
  Status theirs;
  const Status torn_down = tear_down(control, &theirs);
  if (result.ok() && !torn_down.ok()) return torn_down;
  if (!result.ok() && !theirs.ok() && theirs.message() != result.status().message()) {
    return Status(result.status().code(), fmt::format("{}; the responder says: {}",
                                                      result.status().message(), theirs.message()));
  }
  return result;
}

void end_session(ControlConnection& control) {
  // If it does not get there, the responder notices the end of the connection.
  static_cast<void>(send_message(control, {.kind = MessageKind::kBye}));
}

}  // namespace verbena::bench
