// What is measured: one design in one topology with one set of sizes, and how long.
//
// axis.h has the table of what can be varied; a member here belongs to an entry there.
#pragma once

#include <cstdint>

#include "src/bench/experiment/topology.h"
#include "src/bench/verbs/operation.h"
#include "verbena/rpc.h"

namespace verbena::bench {

// Who owns the queue pairs ("patterns" 4.1).
enum class ConnectionModel : uint8_t {
  kPrivate,     // each requesting thread has its own ("design 1")
  kDispatcher,  // one more thread per requesting node has them all ("design 2")
};

// What a thread does that finds nothing.
enum class WaitMode : uint8_t {
  kPoll,   // spins, then yields
  kBlock,  // then sleeps until a completion comes, where the protocol has one
};

// What a point is about.
enum class Subject : uint8_t {
  kMessages,  // requests and their responses
  kVerbs,     // single verbs, which nobody answers
};

struct Point {
  // kMessages: the members up to `think_ns` say all; else those of raw verbs below, and `threads`,
  // `pending` and how work is posted.
  Operation operation = Operation::kMessages;

  Protocol protocol = Protocol::kWriteWrite;
  MarkLayout layout = MarkLayout::kLastBit;  // means something only where uses_mark_layout()
  uint32_t request_bytes = 64;
  uint32_t response_bytes = 64;
  uint32_t pending = 1;  // per queue pair; with a random responder, per requesting thread

  Topology topology = Topology::kOneToOne;
  uint32_t nodes = 1;
  uint32_t threads = 1;
  uint32_t responder_nodes = 1;
  uint32_t responder_threads = 1;
  ConnectionModel model = ConnectionModel::kPrivate;

  ReceiveQueues receive_queues = ReceiveQueues::kShared;
  WaitMode wait = WaitMode::kPoll;
  uint32_t inline_bytes = kDeviceInlineLimit;
  uint32_t signal_interval = 0;  // 0: a quarter of the send queue
  uint32_t post_batch = 1;
  uint32_t poll_batch = 0;  // 0: all that have come
  uint32_t huge_pages = 0;
  uint32_t spare_receives = 1;

  // The share of requests that are sent, in millionths: before each, a requester draws, and instead
  // of the others it rests for `think_ns` ("patterns" 7, figure 9b).
  uint32_t active_ppm = kAlwaysActive;
  uint64_t think_ns = 8'000;

  // --- raw verbs: a thread and its queue pair have a region on each side ---

  uint32_t size_bytes = 64;  // of an entry
  uint32_t entries = 1;      // of an operation
  VectorMethod method = VectorMethod::kSgl;
  AccessPattern local = AccessPattern::kSequential;
  AccessPattern remote = AccessPattern::kSequential;
  uint64_t region_bytes = uint64_t{1} << 20;

  static constexpr uint32_t kAlwaysActive = 1'000'000;

  bool operator==(const Point&) const = default;
};

inline Subject subject_of(const Point& point) {
  return point.operation == Operation::kMessages ? Subject::kMessages : Subject::kVerbs;
}

// Of one raw operation.
inline uint32_t requests_per_operation(const Point& point) {
  return point.method == VectorMethod::kDoorbell ? point.entries : 1;
}
inline uint64_t operation_bytes(const Point& point) {
  return uint64_t{point.entries} * point.size_bytes;
}

// What counts as payload of a message: the response, as the papers do; of an operation all of it.
inline uint64_t value_bytes(const Point& point) {
  return subject_of(point) == Subject::kVerbs ? operation_bytes(point) : point.response_bytes;
}

inline TopologyShape shape_of(const Point& point) {
  return {.topology = point.topology,
          .nodes = point.nodes,
          .threads = point.threads,
          .responder_nodes = point.responder_nodes,
          .responder_threads = point.responder_threads};
}

// The slots of one queue pair: a dispatcher's carries the requests of all its workers.
inline uint32_t pending_per_queue_pair(const Point& point) {
  return point.model == ConnectionModel::kDispatcher ? point.pending * point.threads
                                                     : point.pending;
}

// Who connects to whom: as the topology says, or the dispatchers in their threads' stead.
inline Result<Wiring> wire_connections(const Point& point) {
  VERBENA_ASSIGN_OR_RETURN(Wiring wiring, wire(shape_of(point)));
  if (point.model == ConnectionModel::kDispatcher) wiring = with_dispatchers(wiring);
  return wiring;
}

// Threads of a node: those that request, those that respond, and the dispatcher.
inline uint32_t threads_of(const WiredNode& node, const Point& point) {
  const bool dispatched = point.model == ConnectionModel::kDispatcher && node.requesting > 0;
  return node.requesting + node.responding + (dispatched ? 1 : 0);
}

// How long one run of a point lasts: until either limit is reached.
// So long nothing may complete in a run, and no sign of life come from a node.
inline constexpr uint64_t kStallNs = 30'000'000'000;

struct RunLength {
  uint64_t requests = UINT64_MAX;  // of each requesting thread
  uint64_t duration_ns = 300'000'000;
};

// "last-bit" and so on; "none" where the protocol has no mark.
inline const char* layout_text(const Point& point) {
  return uses_mark_layout(point.protocol) ? mark_layout_name(point.layout) : "none";
}

}  // namespace verbena::bench
