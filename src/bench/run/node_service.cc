#include "src/bench/run/node_service.h"

#include <fmt/format.h>
#include <poll.h>

#include <array>
#include <cerrno>

#include "src/base/runtime.h"
#include "src/bench/run/coordination.h"
#include "src/bench/run/interrupt.h"
#include "src/bench/run/placement.h"
#include "src/bench/run/point_node.h"

namespace verbena::bench {

namespace {

constexpr int64_t kForeverNs = INT64_MAX;

// Serves one point from set-up to tear-down. Returns the message that ended it, normally the
// request to tear down.
Result<Message> serve_point(PointNode& point, ControlConnection& control) {
  VERBENA_RETURN_IF_ERROR(point.start());
  for (;;) {
    bool answered = false;
    uint64_t spoke_ns = now_ns();
    for (bool arrived = false; !arrived;) {
      point.clear_event();
      if (const Status failure = point.failure(); !failure.ok()) return failure;
      if (const Status stall = point.stalled(); !stall.ok()) {
        // At once: the end of the point waits for the threads.
        VERBENA_RETURN_IF_ERROR(send_failure(control, stall));
        return stall;
      }
      if (!answered && now_ns() - spoke_ns >= kAliveNs) {
        spoke_ns = now_ns();
        VERBENA_RETURN_IF_ERROR(send_message(control, {.kind = MessageKind::kAlive}));
      }
      if (!answered && point.settled()) {
        VERBENA_RETURN_IF_ERROR(send_message(control, point.answer()));
        answered = true;
      }
      std::array<pollfd, 2> sources = {pollfd{control.descriptor(), POLLIN, 0},
                                       pollfd{point.descriptor(), POLLIN, 0}};
      if (poll(sources.data(), sources.size(), kInterruptLookMs) < 0 && errno != EINTR) {
        return Status(StatusCode::kInternal, "cannot wait for the threads");
      }
      if (interrupted()) return Status(StatusCode::kUnavailable, "interrupted");
      arrived = sources[0].revents != 0;
    }
    Result<Message> message = receive_message(control, kForeverNs);
    if (!message.ok() || message->kind == MessageKind::kTearDown ||
        message->kind == MessageKind::kBye) {
      return message;
    }
    VERBENA_RETURN_IF_ERROR(point.begin(*message));
  }
}

}  // namespace

Status serve_coordinator(const Device& device, const ProtectionDomain& domain,
                         const JobSecret& secret, ControlConnection& control, uint64_t token,
                         std::string address) {
  if (address.empty()) address = own_address(control);
  VERBENA_RETURN_IF_ERROR(send_message(
      control, {.kind = MessageKind::kHello,
                .hello = {.host = host_identity(), .cpus = usable_cpus(), .token = token}}));
  for (;;) {
    Result<Message> message = receive_message(control, kForeverNs);
    if (message.ok() && message->kind == MessageKind::kSetup) {
      Setup setup = std::move(message->setup);
      Result<Wiring> wiring = wire(shape_of(setup.point));
      if (!wiring.ok()) {
        message = wiring.status();
      } else if (setup.node >= wiring->nodes.size()) {
        message = Status(StatusCode::kProtocolViolation, "the point has no node with this number");
      } else {
        auto shared = std::make_shared<JobWiring>(std::move(*wiring), setup.point.model);
        PointNode point(device, domain, secret, address, std::move(setup), std::move(shared));
        message = serve_point(point, control);
      }
    }
    if (interrupted()) return Status(StatusCode::kUnavailable, "interrupted");
    if (message.ok() && message->kind == MessageKind::kBye) return Status::ok_status();
    if (message.ok() && message->kind == MessageKind::kTearDown) {
      // Perhaps of a point that was never there.
      VERBENA_RETURN_IF_ERROR(send_message(control, {.kind = MessageKind::kDone}));
    } else if (message.ok() && message->kind == MessageKind::kFailed) {
      return Status(message->code, fmt::format("the coordinator {} refuses: {}",
                                               control.peer_name(), message->cause));
    } else if (control.peer_closed()) {
      return Status(StatusCode::kUnavailable,
                    fmt::format("the coordinator {} is gone: it ended in the middle of the job",
                                control.peer_name()));
    } else {
      const Status why =
          message.ok() ? Status(StatusCode::kProtocolViolation,
                                fmt::format("the coordinator {} sent message {} instead of a point "
                                            "to measure; run the same release on both sides",
                                            control.peer_name(), static_cast<int>(message->kind)))
                       : message.status();
      VERBENA_RETURN_IF_ERROR(send_failure(control, why));
    }
  }
}

}  // namespace verbena::bench
