#include "src/bench/request_response/requesting_connections.h"

#include <utility>

#include "src/bench/request_response/request_response_settings.h"
#include "src/bench/run/thread_connection.h"
#include "src/rpc/requester_control.h"

namespace verbena::bench {
namespace {

RequesterOptions requester_options(const Point& point) {
  const RequestResponseSettings& settings = request_response_settings(point);
  RequesterOptions options;
  options.request_max_bytes = settings.request_bytes;
  options.response_max_bytes = settings.response_bytes;
  options.pending = pending_per_queue_pair(point);
  options.inline_bytes = point.inline_bytes;
  options.signal_interval = point.signal_interval;
  options.post_batch = point.post_batch;
  options.poll_batch = settings.poll_batch;
  options.blocking = point.wait == WaitMode::kBlock;
  options.huge_pages = point.huge_pages != 0;
  options.receive_slack = settings.receive_slack != 0;
  options.transport = settings.transport;
  options.handshake_timeout_ns = kSetupTimeoutNs;
  return options;
}

}  // namespace

Status RequestingConnections::connect(const NodeJob& job, uint32_t number) {
  const RequestResponseSettings& settings = request_response_settings(job.setup.point);
  const RequesterOptions options = requester_options(job.setup.point);
  Protocol protocol = settings.protocol;
  MarkLayout layout = settings.layout;
  for (const uint32_t peer : job.connections().requesting[number].peers) {
    const bool first = requesters_.empty();
    if (!first && job.team.halt().load(std::memory_order_relaxed)) break;
    VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<ControlConnection> control, reach(job, number, peer));
    VERBENA_ASSIGN_OR_RETURN(const rpc::DesignAgreement agreed,
                             rpc::request_design(protocol, layout, job.device, *control, options));
    controls_.push_back(std::move(*control));
    VERBENA_ASSIGN_OR_RETURN(
        std::unique_ptr<Requester> requester,
        rpc::connect_requester(job.device, job.domain, controls_.back(), options, agreed));
    if (first) {
      agreed_ = agreed;
      protocol = agreed.protocol;
      layout = requester->mark_layout();
    }
    requesters_.push_back(std::move(requester));
  }
  return Status::ok_status();
}

uint64_t RequestingConnections::resent() const {
  uint64_t sum = 0;
  for (const auto& requester : requesters_) sum += requester->statistics().resent;
  return sum;
}

}  // namespace verbena::bench
