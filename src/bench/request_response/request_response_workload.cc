#include "src/bench/request_response/request_response_workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "src/bench/experiment/limits.h"
#include "src/bench/experiment/size_list.h"
#include "src/bench/request_response/answer_loop.h"
#include "src/bench/request_response/dispatched_threads.h"
#include "src/bench/request_response/request_response_axes.h"
#include "src/bench/request_response/request_response_settings.h"
#include "src/bench/request_response/request_response_table.h"
#include "src/bench/request_response/requesting_thread.h"
#include "src/bench/request_response/responding_thread.h"
#include "src/rpc/negotiation.h"

namespace verbena::bench {

namespace {

using Settings = RequestResponseSettings;

constexpr std::array<std::string_view, 2> kLineAxes = {"protocol", "transport"};
constexpr std::array kMetrics = {
    ShareMetric{.json = "empty_poll_share",
                .former = "empty_look_share",
                .part = kEmptyPolls,
                .whole = kPolls},
    ShareMetric{.json = "resent_per_request", .part = kResent, .whole = kAnswered}};

Status check_transport(const Settings& settings) {
  if (rpc::check_transport(settings.protocol, settings.transport).ok()) {
    return Status::ok_status();
  }
  const char* const resending = settings.transport == Transport::kUc
                                    ? "send/send and write/write only; use one of these"
                                    : "send/send only; use that";
  return Status(StatusCode::kInvalidArgument,
                fmt::format("{}: what {} loses is sent again by {}, or leave out --transport",
                            design_text(settings), transport_name(settings.transport), resending));
}

Status check_device_transport(const Settings& settings, const DeviceInfo& device) {
  if (settings.transport == Transport::kRc) return Status::ok_status();
  const uint32_t larger = std::max(settings.request_bytes, settings.response_bytes);
  if (settings.transport == Transport::kUc || larger <= device.active_mtu_bytes) {
    return Status::ok_status();
  }
  return Status(StatusCode::kLimitExceeded,
                fmt::format("{} of {} are asked for, a datagram of {} carries {} (the MTU of its "
                            "port); lower {}, or use --transport uc or rc",
                            settings.request_bytes == larger ? "requests" : "responses",
                            size_text(larger), device.name, size_text(device.active_mtu_bytes),
                            settings.request_bytes == larger ? "--request" : "--response"));
}

class RequestResponseWorkload : public Workload {
 public:
  RequestResponseWorkload()
      : Workload({.name = "request-response",
                  .subject = "requests and responses",
                  .has_topology = true,
                  .verifies = true,
                  .soft_huge_pages = false,
                  .axes = request_response_axes(),
                  .line_axes = kLineAxes,
                  .metrics = kMetrics,
                  .command = {.name = "bench"}}) {}

  Point point() const override { return {.workload = this, .settings = Settings()}; }

  Result<Point> fit(Point point) const override {
    Settings& settings = request_response_settings(point);
    if (!uses_mark_layout(settings.protocol)) settings.layout = MarkLayout::kLastBit;
    VERBENA_RETURN_IF_ERROR(check_transport(settings));
    // There is no other kind over these.
    if (settings.transport != Transport::kRc && uses_mark_layout(settings.protocol)) {
      settings.layout = MarkLayout::kImmediate;
    }
    if (settings.transport == Transport::kUc) {
      settings.receive_queues = ReceiveQueues::kPerConnection;
    }
    if (point.arrival_rate_per_s == 0) {
      point.arrivals = Arrivals::kPoisson;
      return point;
    }
    if (point.wait == WaitMode::kBlock) {
      return Status(StatusCode::kInvalidArgument,
                    "requests that arrive at a rate are sent by threads that poll: a thread that "
                    "blocks misses them; leave out --wait block or --arrival-rate");
    }
    if (point.active_ppm != Point::kAlwaysActive) {
      return Status(StatusCode::kInvalidArgument,
                    "--arrival-rate says when requests are sent, and so does --active; leave out "
                    "one of them");
    }
    return point;
  }

  Status check(const Point& point, const DeviceInfo& device,
               uint64_t available_bytes) const override {
    VERBENA_RETURN_IF_ERROR(check_queue_depth(pending_per_queue_pair(point), device, "--pending"));
    VERBENA_RETURN_IF_ERROR(check_device_transport(request_response_settings(point), device));
    const uint64_t needed_bytes = memory_bytes(point);
    if (needed_bytes <= available_bytes) return Status::ok_status();
    const Settings& settings = request_response_settings(point);
    return Status(StatusCode::kLimitExceeded,
                  fmt::format("{} pending requests of {} with responses of {} need {} of memory "
                              "on all sides together, {} are available; lower --request, "
                              "--response, --pending or the number of threads",
                              point.pending, size_text(settings.request_bytes),
                              size_text(settings.response_bytes), size_text(needed_bytes),
                              size_text(available_bytes)));
  }

  uint64_t memory_bytes(const Point& point) const override {
    const Settings& settings = request_response_settings(point);
    const Result<Wiring> wiring = wire_connections(point);
    const uint64_t queue_pairs = wiring.ok() ? wiring->queue_pairs() : 1;
    // Each side has a slot of its own for what it sends and for what it receives.
    return queue_pairs * 2 * pending_per_queue_pair(point) *
           (uint64_t{settings.request_bytes} + uint64_t{settings.response_bytes});
  }

  ThreadBody body(ThreadRole role, const Point& point) const override {
    switch (role) {
      case ThreadRole::kRequesting:
        return point.model == ConnectionModel::kDispatcher ? run_worker_thread
                                                           : run_requesting_thread;
      case ThreadRole::kDispatching:
        return run_dispatcher_thread;
      case ThreadRole::kResponding:
        break;
    }
    return run_responding_thread;
  }

  void adopt(Point& point, MarkLayout used) const override {
    request_response_settings(point).layout = used;
  }

  OperationBytes operation_bytes(const Point& point) const override {
    const Settings& settings = request_response_settings(point);
    // A READ has no request that travels.
    const uint64_t request_bytes =
        settings.protocol == Protocol::kRead ? 0 : settings.request_bytes;
    return {.value = settings.response_bytes, .total = request_bytes + settings.response_bytes};
  }

  std::string text(const Point& point) const override {
    const Settings& settings = request_response_settings(point);
    std::string shape;
    if (point.topology != Topology::kOneToOne) {
      shape = fmt::format("{} {}x{}, ", topology_name(point.topology), point.nodes, point.threads);
    }
    std::string arrival;
    if (point.arrival_rate_per_s > 0) {
      arrival = fmt::format(", {} arrivals/s", point.arrival_rate_per_s);
    }
    return fmt::format("{}{}, {} request, {} response, {} pending{}", shape, design_text(settings),
                       size_text(settings.request_bytes), size_text(settings.response_bytes),
                       point.pending, arrival);
  }

  std::string line_text(const Point& point) const override {
    return design_text(request_response_settings(point));
  }

  std::string table(const std::vector<PointResult>& results) const override {
    return request_response_table(results);
  }
  std::string profiles_table(const std::vector<PointResult>& results) const override {
    return request_response_profiles(results);
  }
};

}  // namespace

const Workload& request_response_workload() {
  static const RequestResponseWorkload kWorkload;
  return kWorkload;
}

}  // namespace verbena::bench
