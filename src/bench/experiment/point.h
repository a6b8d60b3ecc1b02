// What is measured: a workload in one topology with one value on each of its axes.
#pragma once

#include <any>
#include <cstdint>
#include <vector>

#include "src/base/assert.h"
#include "src/bench/experiment/topology.h"
#include "verbena/rpc.h"
#include "verbena/status.h"

namespace verbena::bench {

class Workload;

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

// When the requests of an open loop arrive.
enum class Arrivals : uint8_t {
  kPoisson,  // independent of each other: exponential gaps
  kEven,     // equal gaps
};

// The members that every workload has; which of them can be varied says its axes. Workload::point()
// makes one.
struct Point {
  const Workload* workload = nullptr;

  Topology topology = Topology::kOneToOne;
  uint32_t nodes = 1;
  uint32_t threads = 1;
  uint32_t responder_nodes = 1;
  uint32_t responder_threads = 1;
  ConnectionModel model = ConnectionModel::kPrivate;

  uint32_t pending = 1;          // per queue pair; with a random responder, per requesting thread
  uint32_t signal_interval = 0;  // 0: as the workload does it
  uint32_t post_batch = 1;
  uint32_t inline_bytes = kDeviceInlineLimit;
  uint32_t huge_pages = 0;
  WaitMode wait = WaitMode::kPoll;
  // The share of requests that are sent, in millionths: before each, a requester draws, and instead
  // of the others it rests for `think_ns` ("patterns" 7, figure 9b).
  uint32_t active_ppm = kAlwaysActive;
  uint64_t think_ns = 8'000;
  // Open loop: so many requests per second arrive, of all requesting threads together. 0: a closed
  // loop.
  uint64_t arrival_rate_per_s = 0;
  Arrivals arrivals = Arrivals::kPoisson;  // means something in an open loop only

  // What the workload has beside these: a struct of its own (settings_of()).
  std::any settings{};

  static constexpr uint32_t kAlwaysActive = 1'000'000;
};

template <typename Settings>
const Settings& settings_of(const Point& point) {
  const auto* settings = std::any_cast<Settings>(&point.settings);
  VERBENA_ASSERT(settings != nullptr);
  return *settings;
}
template <typename Settings>
Settings& settings_of(Point& point) {
  auto* settings = std::any_cast<Settings>(&point.settings);
  VERBENA_ASSERT(settings != nullptr);
  return *settings;
}

// The workload, the topology, and then the value on each of the workload's axes: equal for equal
// points.
std::vector<uint64_t> key_of(const Point& point);
bool operator==(const Point& a, const Point& b);

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

}  // namespace verbena::bench
