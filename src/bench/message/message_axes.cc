#include "src/bench/message/message_axes.h"

#include <array>

#include "src/bench/experiment/axis_kinds.h"
#include "src/bench/experiment/common_axes.h"
#include "src/bench/message/message_settings.h"

namespace verbena::bench {

namespace {

using Settings = MessageSettings;

constexpr ListLimits kPeersLimits{.what = "number of peers", .min = 1, .max = kMaxNodes};
constexpr ListLimits kPeerThreadsLimits{
    .what = "number of threads of a peer", .min = 1, .max = kMaxThreadsPerNode};
constexpr ListLimits kActiveLimits{.what = "number of active peers", .min = 1, .max = 16384};
constexpr ListLimits kWindowLimits{.what = "window", .min = 1, .max = 4096};
constexpr ListLimits kEagerLimits{.what = "eager limit", .min = 128, .max = 65488};
constexpr ListLimits kRingSlotsLimits{.what = "number of ring slots", .min = 2, .max = 4096};
constexpr ListLimits kCreditsLimits{.what = "number of credits", .min = 6, .max = 128};
constexpr ListLimits kPollingSetLimits{.what = "size of the polling set", .min = 0, .max = 1024};
constexpr ListLimits kBuffersLimits{.what = "number of buffers", .min = 1, .max = 1 << 20};
constexpr ListLimits kMessageSizeLimits{.what = "message size", .min = 0, .max = 64 << 20};

constexpr const char* kTestName = "test";
constexpr const char* kChannelName = "channel";
constexpr const char* kPolicyName = "policy";
constexpr const char* kPollingOrderName = "order";
constexpr const char* kLongMessagesName = "way of long messages";
constexpr const char* kUseName = "use of buffers";
constexpr const char* kPlacementName = "placement";

using TestNames = EnumNames<MessageTest, kMessageTests, message_test_name, kTestName>;
using ChannelNames =
    EnumNames<MessageChannel, kMessageChannels, message_channel_name, kChannelName>;
using PolicyNames = EnumNames<PollingSetPolicy, kPollingPolicies, polling_policy_name, kPolicyName>;
using OrderNames = EnumNames<PollingOrder, kPollingOrders, polling_order_name, kPollingOrderName>;
using LongMessagesNames =
    EnumNames<LongMessages, kLongMessageWays, long_messages_name, kLongMessagesName>;
using UseNames = EnumNames<BufferReuse, kBufferReuses, buffer_reuse_name, kUseName>;
using PlacementNames =
    EnumNames<BufferPlacement, kBufferPlacements, buffer_placement_name, kPlacementName>;

bool uses_polling_set(const Point& point) {
  return message_settings(point).channel == MessageChannel::kBoth;
}
bool uses_window(const Point& point) { return has_window(message_settings(point).test); }
bool uses_size(const Point& point) {
  const MessageTest test = message_settings(point).test;
  return test != MessageTest::kProgress && test != MessageTest::kBarrier;
}
bool uses_pairs(const Point& point) {
  const MessageTest test = message_settings(point).test;
  return test < MessageTest::kProgress;
}
bool uses_several_buffers(const Point& point) {
  return uses_pairs(point) && message_settings(point).buffers > 1;
}

constexpr Axis where(Axis axis, bool (*applies)(const Point&), std::string_view depends_on) {
  axis.applies = applies;
  axis.depends_on = depends_on;
  return axis;
}
// Kept apart in figures: points that differ in it are not compared run by run.
constexpr Axis apart(Axis axis) {
  axis.compared = false;
  return axis;
}

constexpr Axis peers_axis() {
  Axis axis = count_axis<kPeersLimits, &Point::responder_nodes>(
      "peers", "responder_nodes", "1", "Further nodes, each a process: the peers of rank 0");
  axis.alias = "responders";
  return axis;
}
constexpr Axis peer_threads_axis() {
  Axis axis = count_axis<kPeerThreadsLimits, &Point::responder_threads>(
      "peer-threads", "responder_threads", "1", "Ranks of each of these nodes, a thread each");
  axis.alias = "responder-threads";
  return axis;
}

constexpr std::array kAxes = {
    peers_axis(),
    peer_threads_axis(),
    where(count_axis<kActiveLimits, &Settings::active>(
              "active-peers", "active_peers", "1",
              "Ranks with which rank 0 exchanges messages, in turn: the last ones; others are "
              "connected"),
          uses_pairs, "test"),
    where(count_axis<kWindowLimits, &Settings::window>(
              "window", "window", "100", "Messages that are sent before the answer is awaited"),
          uses_window, "test"),
    size_axis<kEagerLimits, &Settings::eager_bytes>(
        "eager", "eager_bytes", "2KiB",
        "Messages up to this size are copied through a slot (a whole number of cache lines)"),
    count_axis<kRingSlotsLimits, &Settings::ring_slots>("ring-slots", "ring_slots", "32",
                                                        "Slots of a ring"),
    count_axis<kCreditsLimits, &Settings::credits>(
        "credits", "queue_credits", "16", "Messages on their way to a peer by SEND, at most"),
    where(count_axis<kPollingSetLimits, &Settings::polling_set>(
              "polling-set", "polling_set", "8", "Of channel both: rings that a rank polls"),
          uses_polling_set, "channel"),
    kInlineAxis,
    where(count_axis<kBuffersLimits, &Settings::buffers>("buffers", "buffers", "1",
                                                         "Buffers that messages are sent from"),
          uses_pairs, "test"),
    apart(where(name_axis<UseNames, &Settings::use>(
                    "use", "buffer_use", kUseName, "cyclic",
                    "Of several buffers: cyclic, spectrum (buffer i is used i times), or all"),
                uses_several_buffers, "buffers")),
    apart(where(name_axis<PlacementNames, &Settings::placement>(
                    "placement", "buffer_placement", kPlacementName, "pages",
                    "Of several buffers: pages (of their own), packed (back to back), or all"),
                uses_several_buffers, "buffers")),
    name_axis<LongMessagesNames, &Settings::long_messages>(
        "long-messages", "long_messages", kLongMessagesName, "read",
        "How messages beyond --eager travel: automatic, read, write, chunks, or all"),
    where(size_axis<kMessageSizeLimits, &Settings::size_bytes>("size", "size_bytes", "8",
                                                               "Bytes of a message"),
          uses_size, "test"),
    apart(name_axis<TestNames, &Settings::test>(
        "test", "test", kTestName, "latency",
        "latency, bandwidth, bidirectional, progress, barrier, broadcast, allreduce, scatter, or "
        "all")),
    where(name_axis<PolicyNames, &Settings::policy>(
              "policy", "polling_policy", kPolicyName, "first",
              "Of channel both, whose ring is polled: everybody, first, dynamic, hints, or all"),
          uses_polling_set, "channel"),
    where(name_axis<OrderNames, &Settings::order>(
              "order", "polling_order", kPollingOrderName, "sequential",
              "Of channel both, how rings are polled: sequential, circular, traffic, or all"),
          uses_polling_set, "channel"),
    name_axis<ChannelNames, &Settings::channel>(
        "channel", "channel", kChannelName, "ring",
        "Channels for short messages: ring (all are polled), send (SEND/RECV alone), both, or all"),
};

}  // namespace

std::span<const Axis> message_axes() { return kAxes; }

}  // namespace verbena::bench
