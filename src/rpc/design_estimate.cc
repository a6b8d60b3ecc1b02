#include "verbena/design_estimate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "src/connect/sizing.h"
#include "src/device/step_costs.h"
#include "src/rpc/design_load.h"
#include "src/rpc/designs.h"
#include "src/rpc/options.h"
#include "src/rpc/responder_control.h"

namespace verbena {

namespace rpc {
namespace {

// A number of threads, connections and so on for each part of a workload.
struct Shape {
  Shape(const DesignWorkload& workload, bool dispatcher)
      : requesting_threads(dispatcher ? workload.requesters
                                      : uint64_t{workload.requesters} * workload.workers),
        pending(dispatcher ? uint64_t{workload.pending} * workload.workers : workload.pending) {}

  uint64_t requesting_threads;  // those with queue pairs: as many as a responder has connections
  uint64_t pending;             // of a queue pair
};

struct Sizes {
  uint32_t request_interval = 1;  // of signaled work requests
  uint32_t response_interval = 1;
  uint64_t requester_bytes = 0;
  uint64_t responder_bytes = 0;
};

Status over_limit(const DeviceInfo& device, std::string_view what, uint64_t needed, uint64_t there,
                  std::string_view remedy) {
  return Status(StatusCode::kLimitExceeded, fmt::format("{} {} are needed, {} has {}; {}", needed,
                                                        what, device.name, there, remedy));
}

Status check_device_limits(const DeviceInfo& device, const DesignWorkload& workload,
                           const Shape& shape, uint64_t region_bytes) {
  const uint64_t queue_pairs = std::max<uint64_t>(shape.requesting_threads, workload.responders);
  if (queue_pairs > device.max_queue_pairs) {
    return over_limit(device, "queue pairs of one thread", queue_pairs, device.max_queue_pairs,
                      "use a dispatcher, or fewer requesters or responders");
  }
  if (region_bytes > device.max_memory_region_bytes) {
    return over_limit(device, "bytes in one region", region_bytes, device.max_memory_region_bytes,
                      "lower pending or the sizes");
  }
  return Status::ok_status();
}

template <typename Options>
Options options_for(const DesignWorkload& workload, const Shape& shape) {
  Options options;
  options.request_max_bytes = workload.request_bytes;
  options.response_max_bytes = workload.response_bytes;
  options.pending = static_cast<uint32_t>(shape.pending);
  options.inline_bytes = workload.inline_bytes;
  options.signal_interval = workload.signal_interval;
  options.post_batch = workload.post_batch;
  return options;
}

Result<Sizes> read_sizes(const DeviceInfo& device, const DesignWorkload& workload,
                         const Shape& shape) {
  if (device.max_outstanding_reads == 0) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("{} carries out no READs; use another protocol", device.name));
  }
  VERBENA_RETURN_IF_ERROR(connect::size_send_queue(device, static_cast<uint32_t>(shape.pending),
                                                   /*signal_interval=*/1, workload.post_batch)
                              .status());
  Sizes sizes;
  sizes.requester_bytes = channel::SlotArray::size_bytes(
      channel::unmarked_shape(workload.response_bytes), static_cast<uint32_t>(shape.pending));
  sizes.responder_bytes = workload.response_bytes;
  return sizes;
}

// What a design over UC or UD takes. `shared`: its responder has one end for all connections.
Result<Sizes> unreliable_sizes(Transport transport, Protocol protocol, bool shared,
                               const DeviceInfo& device, const DesignWorkload& workload,
                               const Shape& shape, uint64_t* region_bytes) {
  const auto options = options_for<ResponderOptions>(workload, shape);
  VERBENA_ASSIGN_OR_RETURN(
      const UnreliableSizes requester,
      size_unreliable_end(transport, protocol, device,
                          end_options(options_for<RequesterOptions>(workload, shape))));
  const DesignRequest agreed = {.request_max_bytes = options.request_max_bytes,
                                .response_max_bytes = options.response_max_bytes,
                                .pending = options.pending};
  EndOptions answering = end_options(options, agreed);
  if (shared) {
    answering.sharers = static_cast<uint32_t>(shape.requesting_threads);
    answering.receives_any_length = true;
  }
  VERBENA_ASSIGN_OR_RETURN(const UnreliableSizes responder,
                           size_unreliable_end(transport, protocol, device, answering));
  *region_bytes = std::max(requester.arena_bytes, responder.arena_bytes);
  return Sizes{.request_interval = requester.sends.signal_interval,
               .response_interval = responder.sends.signal_interval,
               .requester_bytes = requester.arena_bytes,
               .responder_bytes = responder.arena_bytes * (shared ? 1 : shape.requesting_threads)};
}

// What the design takes on the device, by the functions that size it when it is made.
template <typename Design>
Result<Sizes> sizes_of(const DeviceInfo& device, const DesignWorkload& workload,
                       const Shape& shape) {
  VERBENA_RETURN_IF_ERROR(check_device_layout(Design::kProtocol, Design::kLayout, device));
  Sizes sizes;
  uint64_t region_bytes = 0;
  if constexpr (Design::kProtocol == Protocol::kRead) {
    VERBENA_ASSIGN_OR_RETURN(sizes, read_sizes(device, workload, shape));
    region_bytes = sizes.requester_bytes;
  } else if constexpr (kTransportOf<Design> != Transport::kRc) {
    VERBENA_ASSIGN_OR_RETURN(
        sizes, unreliable_sizes(kTransportOf<Design>, Design::kProtocol, kUsesInbox<Design>, device,
                                workload, shape, &region_bytes));
  } else {
    using RequestChannel = typename Design::RequestChannel;
    using ResponseChannel = typename Design::ResponseChannel;
    constexpr bool kInbox = kUsesInbox<Design>;
    VERBENA_ASSIGN_OR_RETURN(
        const EndSizes requester,
        (ConnectionEnd<RequestChannel, ResponseChannel, false>::size(
            device, end_options(options_for<RequesterOptions>(workload, shape)))));
    auto options = options_for<ResponderOptions>(workload, shape);
    options.max_connections = static_cast<uint32_t>(shape.requesting_threads);
    const DesignRequest agreed = {.request_max_bytes = options.request_max_bytes,
                                  .response_max_bytes = options.response_max_bytes,
                                  .pending = options.pending};
    VERBENA_ASSIGN_OR_RETURN(const EndSizes responder,
                             (ConnectionEnd<ResponseChannel, RequestChannel, kInbox>::size(
                                 device, end_options(options, agreed))));
    sizes.request_interval = requester.sends.signal_interval;
    sizes.response_interval = responder.sends.signal_interval;
    sizes.requester_bytes = requester.arena_bytes;
    sizes.responder_bytes = responder.arena_bytes * shape.requesting_threads;
    region_bytes = std::max(requester.arena_bytes, responder.arena_bytes);
    if constexpr (kInbox) {
      constexpr bool kBuffers = !RequestChannel::kWritesSlots;
      VERBENA_ASSIGN_OR_RETURN(const channel::ReceivePoolSizes inbox,
                               size_inbox(device, options, kBuffers));
      const uint64_t completions = uint64_t{inbox.receives} + options.max_connections;
      if (completions > device.max_cqes) {
        return over_limit(device, "completions in one queue", completions, device.max_cqes,
                          "lower pending or max_connections");
      }
      if (kBuffers) {
        const uint64_t buffers =
            channel::ReceiveBuffers::size_bytes(options.request_max_bytes, inbox.receives);
        region_bytes = std::max(region_bytes, buffers);
        sizes.responder_bytes += buffers;
      }
    }
  }
  sizes.requester_bytes *= workload.responders;
  VERBENA_RETURN_IF_ERROR(check_device_limits(device, workload, shape, region_bytes));
  return sizes;
}

// One round of a side's polling loop over its incoming channels.
template <typename Channel>
double round_ns(const StepCosts& steps, uint64_t connections, uint64_t pending, bool shared) {
  if (Channel::kConsumesReceives) return (shared ? 1 : connections) * steps.poll_queue_ns;
  if (!Channel::kNotifies) return static_cast<double>(connections) * steps.poll_memory_ns;
  const uint64_t stride = channel::NotificationArray::stride_bytes(static_cast<uint32_t>(pending));
  const uint64_t bytes = shared ? connections * stride : round_up<uint64_t>(stride, 8);
  const uint64_t words = (bytes + 7) / 8;
  return static_cast<double>(shared ? words : words * connections) * steps.poll_memory_ns;
}

template <typename Design>
void add_polling(const DesignWorkload& workload, const Shape& shape, LoadInputs* inputs) {
  if constexpr (Design::kProtocol == Protocol::kRead) {
    inputs->requester_round_ns = workload.responders * inputs->steps.poll_queue_ns;
  } else {
    using RequestChannel = typename Design::RequestChannel;
    const uint64_t connections = shape.requesting_threads;
    inputs->requester_round_ns = round_ns<typename Design::ResponseChannel>(
        inputs->steps, workload.responders, shape.pending, /*shared=*/false);
    inputs->responder_round_ns = round_ns<RequestChannel>(
        inputs->steps, connections, shape.pending, kUsesInbox<Design> || RequestChannel::kNotifies);
    const uint64_t active =
        workload.active == 0 ? connections : std::min<uint64_t>(workload.active, connections);
    // Of a round, what goes to connections without a request, per request found.
    inputs->responder_rounds =
        (1.0 - static_cast<double>(active) / static_cast<double>(connections)) /
        static_cast<double>(active);
    inputs->shared_receives = kUsesInbox<Design>;
  }
}

// ---- what is said ----

std::string half_text(bool write, MarkLayout layout) {
  if (!write) return "a SEND, which takes a receive and a completion";
  switch (layout) {
    case MarkLayout::kLastBit:
      return "one WRITE into a polled slot";
    case MarkLayout::kLengthMarkers:
      return "one WRITE into a polled slot that is zeroed after use";
    case MarkLayout::kHeadTail:
      return "one WRITE into a polled slot";
    case MarkLayout::kDense:
      return "two WRITEs, the second into a dense array that is polled";
    case MarkLayout::kImmediate:
    case MarkLayout::kAutomatic:
      break;
  }
  return "a WRITE_WITH_IMM, which takes a receive and a completion";
}

const char* transport_text(Transport transport) {
  switch (transport) {
    case Transport::kUc:
      return ", over an unreliable connection: what is lost is sent again after a time-out";
    case Transport::kUd:
      return ", as unreliable datagrams: what is lost is sent again after a time-out";
    case Transport::kRc:
      break;
  }
  return "";
}

std::string mechanism_text(Protocol protocol, MarkLayout layout) {
  if (protocol == Protocol::kRead) {
    return "one READ of the responder's memory; no thread there takes part and no handler runs";
  }
  const std::string request =
      half_text(protocol == Protocol::kWriteSend || protocol == Protocol::kWriteWrite, layout);
  const std::string response =
      half_text(protocol == Protocol::kSendWrite || protocol == Protocol::kWriteWrite, layout);
  if (request == response) return request + ", each way";
  return fmt::format("request by {}; response by {}", request, response);
}

// The longest of these is what a request has to wait for.
struct Bound {
  double interval_ns;
  const char* text;
};

Bound busiest(const DesignWorkload& workload, const Shape& shape, Protocol protocol,
              const DeviceInfo& device, const DesignLoad& load) {
  const auto requesting = static_cast<double>(shape.requesting_threads);
  const auto requester_nodes = static_cast<double>(workload.requesters);
  const auto responders = static_cast<double>(workload.responders);
  const double queue_pairs = requesting * responders;
  double under_way = static_cast<double>(shape.pending);
  if (protocol == Protocol::kRead) {
    under_way = std::min<double>(under_way, device.max_outstanding_reads);
  }
  const SideLoad& asks = load.requester;
  const SideLoad& answers = load.responder;
  const std::array bounds = {
      Bound{load.round_trip_ns / (under_way * queue_pairs), "the round trip"},
      Bound{asks.thread / requesting, "the requesting thread"},
      Bound{answers.thread / responders, "the responding thread"},
      Bound{std::max(asks.queue_pair, answers.queue_pair) / queue_pairs, "the queue pair"},
      Bound{std::max(asks.send_unit, asks.receive_unit) / requester_nodes, "the requester's RNIC"},
      Bound{std::max(answers.send_unit, answers.receive_unit) / responders, "the responder's RNIC"},
      Bound{asks.bus / requester_nodes, "the requester's bus"},
      Bound{answers.bus / responders, "the responder's bus"},
      Bound{std::max(asks.link, answers.link) / std::min(requester_nodes, responders), "the link"}};
  return *std::max_element(bounds.begin(), bounds.end(), [](const Bound& a, const Bound& b) {
    return a.interval_ns < b.interval_ns;
  });
}

template <typename Design>
DesignEstimate estimate(const DeviceInfo& device, const DesignWorkload& workload,
                        const StepCosts& steps, bool dispatcher) {
  DesignEstimate estimate;
  estimate.protocol = Design::kProtocol;
  estimate.layout = Design::kLayout;
  estimate.dispatcher = dispatcher;
  estimate.transport = kTransportOf<Design>;
  estimate.of_this_device = steps.of_this_device;
  if constexpr (Design::kProtocol != Protocol::kRead) {
    estimate.receive_queues = Design::kReceiveQueues;
    estimate.takes_receives = Design::RequestChannel::kConsumesReceives;
  }
  const Shape shape(workload, dispatcher);
  const Result<Sizes> sizes = [&]() -> Result<Sizes> {
    if (shape.pending > kMaxPending || shape.requesting_threads > kMaxConnections) {
      return Status(
          StatusCode::kInvalidArgument,
          fmt::format("{} pending requests of each of {} connections; choose at most {} "
                      "and {}",
                      shape.pending, shape.requesting_threads, kMaxPending, kMaxConnections));
    }
    VERBENA_RETURN_IF_ERROR(check_sizes(workload.request_bytes, workload.response_bytes,
                                        static_cast<uint32_t>(shape.pending), workload.post_batch));
    return sizes_of<Design>(device, workload, shape);
  }();
  if (!sizes.ok()) {
    estimate.why = sizes.status().message();
    return estimate;
  }
  estimate.usable = true;
  const uint32_t inline_bytes = connect::inline_limit_bytes(device, workload.inline_bytes);
  const DesignCost cost = Design::cost(workload.request_bytes, workload.response_bytes,
                                       {.inline_limit_bytes = inline_bytes,
                                        .signal_interval = sizes->request_interval,
                                        .post_batch = workload.post_batch},
                                       {.inline_limit_bytes = inline_bytes,
                                        .signal_interval = sizes->response_interval,
                                        .post_batch = workload.post_batch});
  LoadInputs inputs{.steps = steps, .hand_overs = dispatcher ? 2u : 0u};
  if (device.active_mtu_bytes != 0) inputs.mtu_bytes = device.active_mtu_bytes;
  add_polling<Design>(workload, shape, &inputs);
  const DesignLoad load = load_of(cost, inputs);
  const Bound bound = busiest(workload, shape, Design::kProtocol, device, load);
  estimate.why =
      fmt::format("{}{}; limited by {}", mechanism_text(Design::kProtocol, Design::kLayout),
                  transport_text(kTransportOf<Design>), bound.text);
  estimate.interval_ns = bound.interval_ns;
  estimate.round_trip_ns = load.round_trip_ns;
  estimate.requester_ns = load.requester.thread;
  estimate.responder_ns = load.responder.thread;
  estimate.requester = cost.requester();
  estimate.responder = cost.responder();
  estimate.wire_messages = cost.request.wire_messages + cost.response.wire_messages;
  estimate.wire_bytes = cost.request.wire_bytes + cost.response.wire_bytes;
  estimate.requester_memory_bytes = sizes->requester_bytes;
  estimate.responder_memory_bytes = sizes->responder_bytes;
  return estimate;
}

// What no model can tell apart is decided by the work of the threads, which is there in any case.
bool cheaper(const DesignEstimate& a, const DesignEstimate& b) {
  if (a.usable != b.usable) return a.usable;
  if (!a.usable) return false;
  constexpr double kStepsPerE = 100;  // of about 1 %
  const auto step = [](const DesignEstimate& one) {
    return std::lround(std::log(one.interval_ns) * kStepsPerE);
  };
  if (step(a) != step(b)) return step(a) < step(b);
  return a.requester_ns + a.responder_ns < b.requester_ns + b.responder_ns;
}

template <ReceiveQueues kReceives>
DesignEstimate estimate_with(const DeviceInfo& device, const DesignWorkload& workload,
                             Protocol protocol, MarkLayout layout, bool dispatcher,
                             const StepCosts& steps) {
  return with_design_point<kReceives>(protocol, layout, [&]<typename Design>() {
    return estimate<Design>(device, workload, steps, dispatcher);
  });
}

// Of what check_transport() takes.
DesignEstimate estimate_unreliable(const DeviceInfo& device, const DesignWorkload& workload,
                                   Transport transport, Protocol protocol, ReceiveQueues receives,
                                   bool dispatcher, const StepCosts& steps) {
  return with_transport(
      transport, protocol, MarkLayout::kImmediate, receives,
      [&]<typename Design>() { return estimate<Design>(device, workload, steps, dispatcher); });
}

}  // namespace
}  // namespace rpc

DesignEstimate estimate_design(const DeviceInfo& device, const DesignWorkload& workload,
                               Protocol protocol, MarkLayout layout, ReceiveQueues receive_queues,
                               bool dispatcher, Transport transport) {
  const StepCosts steps = step_costs(device);
  if (transport != Transport::kRc) {
    const Status status = rpc::check_transport(protocol, transport);
    DesignEstimate design = rpc::estimate_unreliable(device, workload, transport,
                                                     status.ok() ? protocol : Protocol::kSendSend,
                                                     receive_queues, dispatcher, steps);
    if (!status.ok()) {
      design.usable = false;
      design.why = status.message();
    }
    return design;
  }
  return receive_queues == ReceiveQueues::kShared
             ? rpc::estimate_with<ReceiveQueues::kShared>(device, workload, protocol, layout,
                                                          dispatcher, steps)
             : rpc::estimate_with<ReceiveQueues::kPerConnection>(device, workload, protocol, layout,
                                                                 dispatcher, steps);
}

std::vector<DesignEstimate> estimate_designs(const DeviceInfo& device,
                                             const DesignWorkload& workload) {
  const StepCosts steps = step_costs(device);
  std::vector<DesignEstimate> designs;
  for (const bool dispatcher : {false, true}) {
    if (dispatcher && workload.workers == 1) continue;
    for (const Protocol protocol : all_protocols()) {
      for (const MarkLayout layout : all_mark_layouts()) {
        if (!uses_mark_layout(protocol) && layout != MarkLayout::kImmediate) continue;
        designs.push_back(rpc::estimate_with<ReceiveQueues::kShared>(device, workload, protocol,
                                                                     layout, dispatcher, steps));
        if (!designs.back().takes_receives) continue;
        designs.push_back(rpc::estimate_with<ReceiveQueues::kPerConnection>(
            device, workload, protocol, layout, dispatcher, steps));
      }
    }
    for (const Transport transport : {Transport::kUc, Transport::kUd}) {
      for (const Protocol protocol : all_protocols()) {
        if (!rpc::check_transport(protocol, transport).ok()) continue;
        for (const ReceiveQueues receives : all_receive_queues()) {
          // UC has queue pairs of two only.
          if (transport == Transport::kUc && receives == ReceiveQueues::kShared) continue;
          designs.push_back(rpc::estimate_unreliable(device, workload, transport, protocol,
                                                     receives, dispatcher, steps));
        }
      }
    }
  }
  std::stable_sort(designs.begin(), designs.end(), rpc::cheaper);
  return designs;
}

}  // namespace verbena
