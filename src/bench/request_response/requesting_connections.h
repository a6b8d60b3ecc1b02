// The queue pairs of a requesting thread, or of a node's dispatcher.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "src/bench/request_response/request_response_settings.h"
#include "src/bench/run/node_job.h"
#include "src/bench/run/thread_connection.h"
#include "src/rpc/requester_control.h"
#include "verbena/connection.h"
#include "verbena/rpc.h"
#include "verbena/status.h"

namespace verbena::bench {

inline RequesterOptions requester_options(const Point& point) {
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

// The first connection, over which the design is agreed on; it decides what is compiled.
struct FirstConnection {
  std::unique_ptr<ControlConnection> control;
  rpc::DesignAgreement agreed;
};
// `number` is that of the requesting thread in job.connections().
inline Result<FirstConnection> reach_first(const NodeJob& job, uint32_t number) {
  const RequestResponseSettings& settings = request_response_settings(job.setup.point);
  FirstConnection first;
  VERBENA_ASSIGN_OR_RETURN(first.control,
                           reach(job, number, job.connections().requesting[number].peers.front()));
  VERBENA_ASSIGN_OR_RETURN(first.agreed,
                           rpc::request_design(settings.protocol, settings.layout, job.device,
                                               *first.control, requester_options(job.setup.point)));
  return first;
}

template <typename Design>
class RequestingConnections {
 public:
  using Requester = typename Design::Requester;

  // Connects to one responding thread after another.
  Status connect(const NodeJob& job, uint32_t number, FirstConnection first) {
    const RequesterOptions options = requester_options(job.setup.point);
    for (const uint32_t peer : job.connections().requesting[number].peers) {
      if (job.team.halt().load(std::memory_order_relaxed)) break;
      rpc::DesignAgreement agreed = first.agreed;
      std::unique_ptr<ControlConnection> control = std::move(first.control);
      if (control == nullptr) {
        VERBENA_ASSIGN_OR_RETURN(control, reach(job, number, peer));
        VERBENA_ASSIGN_OR_RETURN(agreed, rpc::request_design(Design::kProtocol, Design::kLayout,
                                                             job.device, *control, options));
      }
      controls_.push_back(std::move(*control));
      VERBENA_ASSIGN_OR_RETURN(
          auto requester,
          Requester::connect(job.device, job.domain, controls_.back(), options, agreed));
      requesters_.push_back(std::move(requester));
    }
    return Status::ok_status();
  }

  // Of messages, by a transport that loses some.
  uint64_t resent() const {
    uint64_t sum = 0;
    for (const auto& requester : requesters_) sum += requester->statistics().resent;
    return sum;
  }

  // One per peer, in their order.
  std::vector<Requester*> targets() const {
    std::vector<Requester*> all;
    all.reserve(requesters_.size());
    for (const auto& requester : requesters_) all.push_back(requester.get());
    return all;
  }

 private:
  std::deque<ControlConnection> controls_;  // outlive their requesters
  std::vector<std::unique_ptr<Requester>> requesters_;
};

}  // namespace verbena::bench
