// What is varied about tagged messages ("mpiiba" 6, "bufreuse" 5): which micro-benchmark, between
// how many, by which channel, and from which buffers.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "src/bench/experiment/point.h"
#include "src/trace/nas_skeleton.h"
#include "verbena/message.h"

namespace verbena::bench {

enum class MessageTest : uint8_t {
  kLatency,        // a message and its answer of the same size
  kBandwidth,      // a window of messages, and a short answer to all of them
  kBidirectional,  // windows in both directions at once
  kPut,            // a put, and a message and its answer: both ranks know that it is done
  kGet,            // the same with a get
  kProgress,       // a call of progress() that finds nothing
  kBarrier,
  kBroadcast,  // and a barrier, as "bufreuse" 5.1.3 measures it
  kAllreduce,
  kScatter,  // and a barrier
  kReplay,   // the calls of a recorded MPI program, or of a kernel's skeleton
};
inline constexpr std::array kMessageTests = {
    MessageTest::kLatency, MessageTest::kBandwidth, MessageTest::kBidirectional,
    MessageTest::kPut,     MessageTest::kGet,       MessageTest::kProgress,
    MessageTest::kBarrier, MessageTest::kBroadcast, MessageTest::kAllreduce,
    MessageTest::kScatter, MessageTest::kReplay};

constexpr const char* message_test_name(MessageTest test) {
  switch (test) {
    case MessageTest::kLatency:
      return "latency";
    case MessageTest::kBandwidth:
      return "bandwidth";
    case MessageTest::kBidirectional:
      return "bidirectional";
    case MessageTest::kPut:
      return "put";
    case MessageTest::kGet:
      return "get";
    case MessageTest::kProgress:
      return "progress";
    case MessageTest::kBarrier:
      return "barrier";
    case MessageTest::kBroadcast:
      return "broadcast";
    case MessageTest::kAllreduce:
      return "allreduce";
    case MessageTest::kScatter:
      return "scatter";
    case MessageTest::kReplay:
      break;
  }
  return "replay";
}
// All ranks take part.
constexpr bool is_collective(MessageTest test) { return test >= MessageTest::kBarrier; }
constexpr bool is_one_sided(MessageTest test) {
  return test == MessageTest::kPut || test == MessageTest::kGet;
}
constexpr bool has_window(MessageTest test) {
  return test == MessageTest::kBandwidth || test == MessageTest::kBidirectional;
}

// Which of a connection's two channels short messages may take.
enum class MessageChannel : uint8_t {
  kRing,  // everybody is in everybody's polling set: the RDMA channel of "mpiiba"
  kSend,  // nobody is: its SEND/RECV channel alone
  kBoth,  // whom the polling set's size and policy say
};
inline constexpr std::array kMessageChannels = {MessageChannel::kRing, MessageChannel::kSend,
                                                MessageChannel::kBoth};
constexpr const char* message_channel_name(MessageChannel channel) {
  if (channel == MessageChannel::kRing) return "ring";
  return channel == MessageChannel::kSend ? "send" : "both";
}

inline constexpr std::array kPollingPolicies = {PollingSetPolicy::kAll, PollingSetPolicy::kFirst,
                                                PollingSetPolicy::kDynamic,
                                                PollingSetPolicy::kHints};
constexpr const char* polling_policy_name(PollingSetPolicy policy) {
  switch (policy) {
    case PollingSetPolicy::kAll:
      return "everybody";
    case PollingSetPolicy::kFirst:
      return "first";
    case PollingSetPolicy::kDynamic:
      return "dynamic";
    case PollingSetPolicy::kHints:
      break;
  }
  return "hints";
}

inline constexpr std::array kPollingOrders = {PollingOrder::kSequential, PollingOrder::kCircular,
                                              PollingOrder::kByTraffic};
constexpr const char* polling_order_name(PollingOrder order) {
  if (order == PollingOrder::kSequential) return "sequential";
  return order == PollingOrder::kCircular ? "circular" : "traffic";
}

// Whether short messages leave from buffers that are used often without a copy.
inline constexpr std::array kReusedBuffers = {ReusedBuffers::kCopied, ReusedBuffers::kMeasured,
                                              ReusedBuffers::kPaper};
constexpr const char* reused_buffers_name(ReusedBuffers reused) {
  if (reused == ReusedBuffers::kCopied) return "copied";
  return reused == ReusedBuffers::kMeasured ? "measured" : "paper";
}
inline constexpr std::array kReusedIndexes = {ReusedIndex::kHash, ReusedIndex::kTree};
constexpr const char* reused_index_name(ReusedIndex index) {
  return index == ReusedIndex::kHash ? "hash" : "tree";
}

inline constexpr std::array kLongMessageWays = {LongMessages::kAutomatic, LongMessages::kRead,
                                                LongMessages::kWrite, LongMessages::kPipelined};
constexpr const char* long_messages_name(LongMessages way) {
  switch (way) {
    case LongMessages::kAutomatic:
      return "automatic";
    case LongMessages::kRead:
      return "read";
    case LongMessages::kWrite:
      return "write";
    case LongMessages::kPipelined:
      break;
  }
  return "chunks";
}

// When a short send is over that is copied to a slot.
enum class SendEnd : uint8_t {
  kCopied,        // at once
  kAcknowledged,  // once the peer's device has it, as in the paper's MPI ("bufreuse" 1)
};
inline constexpr std::array kSendEnds = {SendEnd::kCopied, SendEnd::kAcknowledged};
constexpr const char* send_end_name(SendEnd end) {
  return end == SendEnd::kCopied ? "copied" : "acknowledged";
}

// How often each of several buffers is sent from.
enum class BufferReuse : uint8_t {
  kCyclic,    // all alike, one after the other
  kSpectrum,  // buffer i of n: i times in n rounds ("bufreuse" 5.1.1)
};
inline constexpr std::array kBufferReuses = {BufferReuse::kCyclic, BufferReuse::kSpectrum};
constexpr const char* buffer_reuse_name(BufferReuse use) {
  return use == BufferReuse::kCyclic ? "cyclic" : "spectrum";
}

// What is replayed.
enum class ReplaySkeleton : uint8_t { kRecorded, kIs, kCg, kMg, kFt, kLu, kEp, kBt, kSp };
inline constexpr std::array kReplaySkeletons = {
    ReplaySkeleton::kRecorded, ReplaySkeleton::kIs, ReplaySkeleton::kCg,
    ReplaySkeleton::kMg,       ReplaySkeleton::kFt, ReplaySkeleton::kLu,
    ReplaySkeleton::kEp,       ReplaySkeleton::kBt, ReplaySkeleton::kSp};
// Of all but the first.
constexpr trace::NasKernel kernel_of(ReplaySkeleton skeleton) {
  return static_cast<trace::NasKernel>(static_cast<uint8_t>(skeleton) - 1);
}
static_assert(kernel_of(ReplaySkeleton::kSp) == trace::NasKernel::kSp);
constexpr const char* replay_skeleton_name(ReplaySkeleton skeleton) {
  return skeleton == ReplaySkeleton::kRecorded ? "recorded"
                                               : trace::nas_kernel_name(kernel_of(skeleton));
}

// How buffers lie in memory.
enum class BufferPlacement : uint8_t { kPages, kPacked };
inline constexpr std::array kBufferPlacements = {BufferPlacement::kPages, BufferPlacement::kPacked};
constexpr const char* buffer_placement_name(BufferPlacement placement) {
  return placement == BufferPlacement::kPages ? "pages" : "packed";
}

// How long the memory of a message lasts.
enum class MessageMemoryUse : uint8_t { kKept, kFresh };
inline constexpr std::array kMessageMemoryUses = {MessageMemoryUse::kKept,
                                                  MessageMemoryUse::kFresh};
constexpr const char* message_memory_use_name(MessageMemoryUse use) {
  return use == MessageMemoryUse::kKept ? "kept" : "fresh";
}

// What a point about messages has beside Point's own members. Rank 0 is the one requesting thread,
// which measures; the others are the responding threads.
struct MessageSettings {
  // Peers that rank 0 exchanges messages with, in turn: the last ones, which it met last.
  uint32_t active = 1;
  uint32_t window = 100;
  uint32_t eager_bytes = 2048;
  uint32_t ring_slots = 32;
  uint32_t credits = 16;
  uint32_t polling_set = 8;
  uint32_t buffers = 1;  // that each rank sends from
  BufferReuse use = BufferReuse::kCyclic;
  BufferPlacement placement = BufferPlacement::kPages;
  MessageMemoryUse memory = MessageMemoryUse::kKept;
  PollingSetPolicy policy = PollingSetPolicy::kFirst;
  PollingOrder order = PollingOrder::kSequential;
  ReusedBuffers reuse = ReusedBuffers::kCopied;
  ReusedIndex index = ReusedIndex::kHash;
  LongMessages long_messages = MessengerOptions().long_messages;
  SendEnd send_end = SendEnd::kCopied;
  uint64_t size_bytes = 8;
  MessageTest test = MessageTest::kLatency;
  // Of a replay.
  ReplaySkeleton skeleton = ReplaySkeleton::kRecorded;
  trace::NasClass nas_class = trace::NasClass::kS;
  uint32_t iterations = 0;         // 0: all of the class
  uint32_t mops = 300;             // a rank's millions of operations in a second
  uint32_t compute_percent = 100;  // of the time that was computed
  MessageChannel channel = MessageChannel::kRing;
};

inline const MessageSettings& message_settings(const Point& point) {
  return settings_of<MessageSettings>(point);
}
inline MessageSettings& message_settings(Point& point) {
  return settings_of<MessageSettings>(point);
}

inline uint32_t message_ranks(const Point& point) {
  return 1 + point.responder_nodes * point.responder_threads;
}

inline bool is_active_rank(const Point& point, uint32_t rank) {
  const MessageSettings& settings = message_settings(point);
  return rank > 0 &&
         (is_collective(settings.test) || rank + settings.active >= message_ranks(point));
}

// The options of a rank's messenger.
MessengerOptions messenger_options(const Point& point, uint32_t rank);

// --- what is counted: places in Report::counters ---

enum MessageCounter : uint8_t {
  kMessageOperations,  // of rank 0
  kChannelMessages,    // of all ranks, without those that only return credits
  kRingMessages,       // of these
  kCreditMessages,
  kUnexpectedMessages,
  kPinnedBytes,  // of rank 0, for each operation
  // In collectives, of all ranks: without the barrier behind them. Of a replay: in its calls.
  kCollectiveNs,
  kCollectives,
  kUncopiedMessages,  // of all ranks: short ones from the user's memory, and gets into it
};

}  // namespace verbena::bench
