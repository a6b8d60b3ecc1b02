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

constexpr ListLimits kIterationsLimits{.what = "number of iterations", .min = 0, .max = 1000000};
constexpr ListLimits kMopsLimits{
    .what = "millions of operations per second", .min = 1, .max = 1000000};
constexpr ListLimits kComputeLimits{
    .what = "percentage of the computing time", .min = 0, .max = 100000};

constexpr const char* kTestName = "test";
constexpr const char* kSkeletonName = "skeleton";
constexpr const char* kClassName = "class";
constexpr const char* kChannelName = "channel";
constexpr const char* kPolicyName = "policy";
constexpr const char* kPollingOrderName = "order";
constexpr const char* kLongMessagesName = "way of long messages";
constexpr const char* kUseName = "use of buffers";
constexpr const char* kPlacementName = "placement";
constexpr const char* kMemoryName = "memory of messages";
constexpr const char* kReuseName = "reuse of buffers";
constexpr const char* kIndexName = "index";
constexpr const char* kSendEndName = "end of sends";

using ClassNames =
    EnumNames<trace::NasClass, trace::kNasClasses, trace::nas_class_name, kClassName>;
// What is said by "all" is without what needs a recording.
using EveryTestNames = EnumNames<MessageTest, kMessageTests, message_test_name, kTestName>;
struct TestNames : EveryTestNames {
  static std::span<const MessageTest> all() {
    static_assert(kMessageTests.back() == MessageTest::kReplay);
    return std::span(kMessageTests).first<kMessageTests.size() - 1>();
  }
};
using EverySkeletonNames =
    EnumNames<ReplaySkeleton, kReplaySkeletons, replay_skeleton_name, kSkeletonName>;
struct SkeletonNames : EverySkeletonNames {
  static std::span<const ReplaySkeleton> all() {
    static_assert(kReplaySkeletons.front() == ReplaySkeleton::kRecorded);
    return std::span(kReplaySkeletons).last<kReplaySkeletons.size() - 1>();
  }
};
using ChannelNames =
    EnumNames<MessageChannel, kMessageChannels, message_channel_name, kChannelName>;
using PolicyNames = EnumNames<PollingSetPolicy, kPollingPolicies, polling_policy_name, kPolicyName>;
using OrderNames = EnumNames<PollingOrder, kPollingOrders, polling_order_name, kPollingOrderName>;
using LongMessagesNames =
    EnumNames<LongMessages, kLongMessageWays, long_messages_name, kLongMessagesName>;
using UseNames = EnumNames<BufferReuse, kBufferReuses, buffer_reuse_name, kUseName>;
using PlacementNames =
    EnumNames<BufferPlacement, kBufferPlacements, buffer_placement_name, kPlacementName>;
using MemoryNames =
    EnumNames<MessageMemoryUse, kMessageMemoryUses, message_memory_use_name, kMemoryName>;
using ReuseNames = EnumNames<ReusedBuffers, kReusedBuffers, reused_buffers_name, kReuseName>;
using SendEndNames = EnumNames<SendEnd, kSendEnds, send_end_name, kSendEndName>;
using IndexNames = EnumNames<ReusedIndex, kReusedIndexes, reused_index_name, kIndexName>;

bool uses_polling_set(const Point& point) {
  return message_settings(point).channel == MessageChannel::kBoth;
}
bool uses_window(const Point& point) { return has_window(message_settings(point).test); }
bool uses_size(const Point& point) {
  const MessageTest test = message_settings(point).test;
  return test != MessageTest::kProgress && test != MessageTest::kBarrier &&
         test != MessageTest::kReplay;
}
bool is_replay(const Point& point) { return message_settings(point).test == MessageTest::kReplay; }
bool is_skeleton(const Point& point) {
  return is_replay(point) && message_settings(point).skeleton != ReplaySkeleton::kRecorded;
}
bool uses_pairs(const Point& point) {
  const MessageTest test = message_settings(point).test;
  return test < MessageTest::kProgress;
}
bool is_latency(const Point& point) {
  return message_settings(point).test == MessageTest::kLatency;
}
bool uses_several_buffers(const Point& point) {
  return uses_pairs(point) && message_settings(point).buffers > 1;
}

bool uses_table(const Point& point) {
  return message_settings(point).reuse != ReusedBuffers::kCopied;
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

// With values that "all" leaves out.
template <typename Every>
constexpr Axis with_every(Axis axis) {
  axis.possible = has_name<Every>;
  axis.choices = name_choices<Every>;
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
    kSignalIntervalAxis,
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
    apart(where(name_axis<MemoryNames, &Settings::memory>(
                    "memory", "message_memory", kMemoryName, "kept",
                    "Of latency: kept (buffers of the run), fresh (mapped for one message, at "
                    "both ends, which counts), or all"),
                is_latency, "test")),
    where(size_axis<kMessageSizeLimits, &Settings::size_bytes>("size", "size_bytes", "8",
                                                               "Bytes of a message"),
          uses_size, "test"),
    apart(with_every<EveryTestNames>(name_axis<TestNames, &Settings::test>(
        "test", "test", kTestName, "latency",
        "latency, bandwidth, bidirectional, put, get, progress, barrier, broadcast, allreduce, "
        "scatter, all; replay"))),
    apart(where(with_every<EverySkeletonNames>(name_axis<SkeletonNames, &Settings::skeleton>(
                    "skeleton", "skeleton", kSkeletonName, "recorded",
                    "What is replayed: recorded, or a NAS kernel: "
                    "is, cg, mg, ft, lu, ep, bt, sp, or all")),
                is_replay, "test")),
    apart(where(
        name_axis<ClassNames, &Settings::nas_class>("class", "nas_class", kClassName, "S",
                                                    "Of a kernel, its size: S, W, A, B, C, or all"),
        is_skeleton, "skeleton")),
    where(count_axis<kIterationsLimits, &Settings::iterations>(
              "iterations", "iterations", "0", "Of a kernel; 0: as many as the class has"),
          is_skeleton, "skeleton"),
    where(count_axis<kMopsLimits, &Settings::mops>(
              "mops", "mops_per_s", "300",
              "Of a kernel: millions of operations of a rank per second"),
          is_skeleton, "skeleton"),
    where(count_axis<kComputeLimits, &Settings::compute_percent>(
              "compute", "compute_percent", "100",
              "Of a replay: how much of the computing time is spent, in percent"),
          is_replay, "test"),
    apart(name_axis<SendEndNames, &Settings::send_end>(
        "sends", "send_end", kSendEndName, "copied",
        "When a copied send is over: copied (at once), acknowledged (the peer's device has it), or "
        "all")),
    name_axis<ReuseNames, &Settings::reuse>(
        "reuse", "buffer_reuse", kReuseName, "copied",
        "Short messages from buffers used often: copied, measured or paper (without a copy once "
        "that pays), or all"),
    where(name_axis<IndexNames, &Settings::index>(
              "index", "reuse_index", kIndexName,
              "hash", "What used buffers are found by: hash, tree, or all"),
          uses_table, "reuse"),
    name_axis<LongMessagesNames, &Settings::long_messages>(
        "long-messages", "long_messages", kLongMessagesName, "read",
        "How messages beyond --eager travel: automatic, read, write, chunks, or all"),
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
