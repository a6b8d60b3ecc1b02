#include "src/bench/run/shuffle_connections.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "src/base/runtime.h"
#include "src/bench/run/coordination.h"

namespace verbena::bench {

namespace {

// How often a receiver that waits for senders asks whether the point has ended.
constexpr int64_t kLookNs = 20'000'000;

}  // namespace

Result<ControlListener> listen_for_senders(const NodeJob& job) {
  // All senders may come at once, and wait while one of them is taken in.
  ControlListenerOptions options;
  options.max_pending = std::max<size_t>(options.max_pending, job.wiring().requesting.size());
  options.handshake_timeout_ns = kSetupTimeoutNs;
  return ControlListener::listen(job.address, 0, job.secret, options);
}

Result<std::vector<ControlConnection>> reach_receivers(const NodeJob& job) {
  std::vector<ControlConnection> controls;
  for (const ThreadAddress& address : job.addresses) {
    VERBENA_ASSIGN_OR_RETURN(
        ControlConnection control,
        ControlConnection::connect(address.host, address.port, job.secret, kSetupTimeoutNs,
                                   ControlConnection::IfNobodyListens::kFail));
    controls.push_back(std::move(control));
  }
  return controls;
}

Status accept_senders(const NodeJob& job, ControlListener& listener, ShuffleReceiver& receiver) {
  const uint32_t senders = receiver.options().senders;
  const uint64_t start_ns = now_ns();
  for (uint32_t accepted = 0; accepted < senders && !job.team.halted();) {
    Result<ControlConnection> control = listener.accept(kLookNs);
    if (control.ok()) {
      VERBENA_RETURN_IF_ERROR(receiver.accept(std::move(*control)));
      ++accepted;
    } else if (control.status().code() != StatusCode::kTimeout) {
      return control.status();
    } else if (now_ns() - start_ns > uint64_t{kSetupTimeoutNs}) {
      return {StatusCode::kTimeout,
              fmt::format("{} of {} senders connected within {} s; is the machine overloaded?",
                          accepted, senders, kSetupTimeoutNs / 1'000'000'000)};
    }
  }
  return Status::ok_status();
}

}  // namespace verbena::bench
