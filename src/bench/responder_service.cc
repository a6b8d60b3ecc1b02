#include "src/bench/responder_service.h"

#include <fmt/format.h>

#include <memory>
#include <type_traits>
#include <utility>

#include "src/bench/answer_loop.h"
#include "src/bench/messages.h"
#include "src/bench/readable_memory.h"
#include "src/rpc/designs.h"
#include "src/rpc/handshake.h"

namespace verbena::bench {

namespace {

constexpr int64_t kForeverNs = INT64_MAX;

// What came over the control connection, or why it ended: `message` is what remains to be done.
using Next = Result<Message>;

template <typename Responder>
class PhaseServer {
 public:
  PhaseServer(Responder& responder, ControlConnection& control, const Setup& setup)
      : responder_(responder), control_(control), setup_(setup) {}

  // Answers requests from "begun" to the end of the phase and reports. Returns the message behind.
  Next serve(const Phase& phase) {
    Report report;
    Next next = answer(phase, &report);
    if (!next.ok() || next->kind != MessageKind::kEndOfPhase) return next;
    VERBENA_RETURN_IF_ERROR(
        send_message(control_, {.kind = MessageKind::kReport, .report = report}));
    return receive_message(control_, kForeverNs);
  }

 private:
  Next answer(const Phase& phase, Report* report) {
    if constexpr (std::is_same_v<Responder, rpc::ReadResponder>) {
      report->cost = CpuCost{};
      VERBENA_RETURN_IF_ERROR(send_message(control_, {.kind = MessageKind::kBegun}));
      return sleep_until_message(responder_, control_);
    } else {
      const bool verify = phase.verify || phase.kind == PhaseKind::kWarmUp;
      return verify ? answer_with(AnswerWork<true>(setup_.point, setup_.run_key + phase.number),
                                  phase, report)
                    : answer_with(AnswerWork<false>(setup_.point, 0), phase, report);
    }
  }

  template <typename Work>
  Next answer_with(Work work, const Phase& phase, Report* report) {
    // Made before "begun": it takes a while.
    std::unique_ptr<PollCost> cost;
    if (phase.kind == PhaseKind::kCost) cost = std::make_unique<PollCost>();
    VERBENA_RETURN_IF_ERROR(send_message(control_, {.kind = MessageKind::kBegun}));
    Next next =
        cost != nullptr
            ? answer_until_message(
                  responder_, control_,
                  [&] { return cost->measure([&] { return responder_.poll(work); }); })
            : answer_until_message(responder_, control_, [&] { return responder_.poll(work); });
    report->requests = work.requests();
    report->mismatches = work.mismatches();
    if (cost != nullptr) report->cost = cost->per_message();
    return next;
  }

  Responder& responder_;
  ControlConnection& control_;
  const Setup& setup_;
};

ResponderOptions options_of(const Point& point) {
  ResponderOptions options;
  options.request_max_bytes = point.request_bytes;
  options.response_max_bytes = point.response_bytes;
  options.pending = point.pending;
  options.handshake_timeout_ns = kSetupTimeoutNs;
  return options;
}

// Makes the responder, connects it and serves the phases of one point. Returns the message behind
// the last phase, normally the request to tear down; everything is gone by then.
template <typename Design>
Next serve_point(const Device& device, const ProtectionDomain& domain, ControlConnection& control,
                 const Setup& setup) {
  ResponderOptions options = options_of(setup.point);
  std::unique_ptr<ReadableMemory> readable;
  if constexpr (Design::kProtocol == Protocol::kRead) {
    readable = std::make_unique<ReadableMemory>(setup.point, setup.run_key);
    options.readable = readable->bytes();
    if (options.readable.empty()) {
      return Status(StatusCode::kLimitExceeded,
                    "the machine has not enough memory for what is to be read; lower --response or "
                    "--pending");
    }
  }
  VERBENA_ASSIGN_OR_RETURN(auto responder, Design::Responder::create(device, domain, options));
  VERBENA_RETURN_IF_ERROR(send_message(control, {.kind = MessageKind::kReady}));
  VERBENA_RETURN_IF_ERROR(responder->connect(control));

  PhaseServer server(*responder, control, setup);
  Next next = receive_message(control, kForeverNs);
  while (next.ok() && next->kind == MessageKind::kPhase) {
    const Phase phase = next->phase;
    next = server.serve(phase);
  }
  return next;
}

}  // namespace

Status serve_requester(const Device& device, const ProtectionDomain& domain,
                       ControlConnection& control) {
  const bool in_order = device.info().writes_in_order;
  for (;;) {
    VERBENA_ASSIGN_OR_RETURN(Message message, receive_message(control, kForeverNs));
    switch (message.kind) {
      case MessageKind::kBye:
        return Status::ok_status();
      case MessageKind::kTearDown:  // of a point that was never there
        VERBENA_RETURN_IF_ERROR(send_message(control, {.kind = MessageKind::kDone}));
        continue;
      case MessageKind::kSetup:
        break;
      default:
        return Status(
            StatusCode::kProtocolViolation,
            fmt::format("the requester {} sent message {} where a point to measure was due; "
                        "run the same release on both sides",
                        control.peer_name(), static_cast<int>(message.kind)));
    }
    const Setup setup = message.setup;
    const MarkLayout layout = rpc::usable_layout(setup.point.layout, in_order);
    Next next = rpc::with_design_point(setup.point.protocol, layout, [&]<typename Design>() {
      return serve_point<Design>(device, domain, control, setup);
    });
    if (next.ok() && next->kind == MessageKind::kTearDown) {
      VERBENA_RETURN_IF_ERROR(send_message(control, {.kind = MessageKind::kDone}));
    } else if (next.ok() && next->kind == MessageKind::kBye) {
      return Status::ok_status();
    } else if (interrupted()) {
      return Status(StatusCode::kUnavailable, "interrupted");
    } else if (control.peer_closed()) {
      return Status(StatusCode::kUnavailable,
                    fmt::format("the requester {} is gone: it ended without a good-bye",
                                control.peer_name()));
    } else {
      const Status why = next.ok() ? Status(StatusCode::kProtocolViolation,
                                            "the requester's messages are out of order")
                                   : next.status();
      VERBENA_RETURN_IF_ERROR(send_failure(control, why));
    }
  }
}

}  // namespace verbena::bench
