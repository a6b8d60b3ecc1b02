#include "src/bench/request_response/request_response_axes.h"

#include <array>

#include "src/bench/experiment/axis_kinds.h"
#include "src/bench/experiment/common_axes.h"
#include "src/bench/request_response/request_response_settings.h"

namespace verbena::bench {

namespace {

using Settings = RequestResponseSettings;

constexpr ListLimits kRequestLimits{.what = "request size", .min = 1, .max = kMaxMessageBytes};
constexpr ListLimits kResponseLimits{.what = "response size", .min = 1, .max = kMaxMessageBytes};
constexpr ListLimits kPollBatchLimits{.what = "poll batch", .min = 0, .max = 4096};
constexpr ListLimits kReceiveSlackLimits{.what = "receive slack", .min = 0, .max = 1};

struct ProtocolNames {
  using Value = Protocol;
  static std::span<const Protocol> all() { return all_protocols(); }
  static const char* name(Protocol protocol) { return protocol_name(protocol); }
  static Result<Protocol> parse(std::string_view text) { return parse_protocol(text); }
};

struct LayoutNames {
  using Value = MarkLayout;
  static std::span<const MarkLayout> all() { return all_mark_layouts(); }
  static const char* name(MarkLayout layout) { return mark_layout_name(layout); }
  static Result<MarkLayout> parse(std::string_view text) { return parse_mark_layout(text); }
};

struct ReceiveQueueNames {
  using Value = ReceiveQueues;
  static std::span<const ReceiveQueues> all() { return all_receive_queues(); }
  static const char* name(ReceiveQueues queues) { return receive_queues_name(queues); }
  static Result<ReceiveQueues> parse(std::string_view text) { return parse_receive_queues(text); }
};

struct TransportNames {
  using Value = Transport;
  static std::span<const Transport> all() { return all_transports(); }
  static const char* name(Transport transport) { return transport_name(transport); }
  static Result<Transport> parse(std::string_view text) { return parse_transport(text); }
};

constexpr Axis response_axis() {
  Axis axis = size_axis<kResponseLimits, &Settings::response_bytes>(
      "response", "response_bytes", "64", "Bytes per response, the value (V)");
  axis.alias = "value";
  return axis;
}

nlohmann::json layout_json(const Point& point) {
  return layout_text(request_response_settings(point));
}
bool has_mark(const Point& point) {
  return uses_mark_layout(request_response_settings(point).protocol);
}

constexpr Axis mark_axis() {
  Axis axis = name_axis<LayoutNames, &Settings::layout>(
      "mark", "mark_layout", "mark layout", "last-bit",
      "How a complete WRITE is recognized: last-bit, length-markers, head-tail, immediate, dense, "
      "or all");
  axis.to_json = layout_json;
  axis.depends_on = "protocol";
  axis.applies = has_mark;
  return axis;
}

constexpr std::array kAxes = {
    kNodesAxis,
    kThreadsAxis,
    kRespondersAxis,
    kResponderThreadsAxis,
    kActiveAxis,
    kThinkAxis,
    kArrivalRateAxis,
    kArrivalsAxis,
    size_axis<kRequestLimits, &Settings::request_bytes>("request", "request_bytes", "64",
                                                        "Bytes per request (L)"),
    response_axis(),
    kPendingAxis,
    kSignalIntervalAxis,
    kPostBatchAxis,
    count_axis<kPollBatchLimits, &Settings::poll_batch>(
        "poll-batch", "poll_batch", "0",
        "Responses that a requester takes of a queue pair before the next one; 0: all"),
    kInlineAxis,
    kHugePagesAxis,
    count_axis<kReceiveSlackLimits, &Settings::receive_slack>(
        "receive-slack", "receive_slack", "1",
        "1: more receives than pending responses; 0: as many, each reposted before its request"),
    kWaitAxis,
    name_axis<ReceiveQueueNames, &Settings::receive_queues>(
        "receive-queues", "receive_queues", "kind of receive queues", "shared",
        "Where requests that need a receive find one: shared, per-connection, or all"),
    kModelAxis,
    name_axis<ProtocolNames, &Settings::protocol>(
        "protocol", "protocol", "protocol", "all",
        "send/send, send/write, write/send, write/write, read, or all"),
    mark_axis(),
    name_axis<TransportNames, &Settings::transport>(
        "transport", "transport", "transport", "rc",
        "Queue pairs; send/send sends again what uc and ud lose, write/write what uc loses: rc, "
        "uc, "
        "ud, or "
        "all"),
};

}  // namespace

std::span<const Axis> request_response_axes() { return kAxes; }

}  // namespace verbena::bench
