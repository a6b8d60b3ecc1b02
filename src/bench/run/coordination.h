// What the coordinator of a benchmark and its nodes tell each other over their control connection.
// The coordinator leads; every node does the same steps, those that are not its role's at once:
//
//   coordinator                            node
//                                    <-    hello: where it runs, or failed and why
//     setup: the point, its number    ->   responding threads make responders and listen
//                                    <-    listening: where
//     connect: where all listen       ->   requesting threads connect, one responder after another
//                                    <-    connected
//     phase: warm-up, cost or timed   ->   responding threads begin to answer
//                                    <-    begun
//     go                              ->   requesting threads send
//                                    <-    finished: what they saw
//     end of phase                    ->   responding threads stop
//                                    <-    report: what they saw
//     (further phases)
//     tear down                       ->
//                                    <-    done
//     (further points)
//     bye                             ->   ends
//
// A node may say "failed" at any time; only "tear down" ends the point then. While a step takes its
// time, it says every second that it is alive.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/bench/experiment/point.h"
#include "src/bench/experiment/run_options.h"
#include "src/bench/load/poll_cost.h"
#include "verbena/connection.h"
#include "verbena/status.h"

namespace verbena::bench {

// For each step until a point is connected: many threads may have to register gigabytes.
inline constexpr int64_t kSetupTimeoutNs = 60'000'000'000;
// How often a node that has not answered yet says that it lives.
inline constexpr uint64_t kAliveNs = 1'000'000'000;

enum class MessageKind : uint8_t {
  kHello = 1,
  kSetup,
  kListening,
  kConnect,
  kConnected,
  kPhase,
  kBegun,
  kGo,
  kFinished,
  kEndOfPhase,
  kReport,
  kTearDown,
  kDone,
  kBye,
  kFailed,
  kAlive,
};

enum class PhaseKind : uint8_t {
  kWarmUp,  // nothing is measured
  kCost,    // what a message costs the CPU is measured, nothing else
  kTimed,
};

struct Hello {
  std::string host;       // placement.h
  std::vector<int> cpus;  // that the node may use, best first
  uint64_t token = 0;     // from its orders: which of the processes started here it is
};

struct Setup {
  Point point;           // fits its topology
  uint32_t node = 0;     // in the wiring
  uint64_t run_key = 0;  // of the payloads, see payload_pattern.h
  uint64_t seed = 0;     // of random choices
  // Of the node's threads: requesting ones, responding ones, dispatcher; -1: not pinned.
  std::vector<int> cpus;
};

// Where a responding thread listens.
struct ThreadAddress {
  std::string host;
  uint16_t port = 0;
  bool operator==(const ThreadAddress&) const = default;
};

struct Phase {
  PhaseKind kind = PhaseKind::kWarmUp;
  bool verify = false;
  uint64_t number = 0;  // within the run, part of the payloads' key
  RunLength length{};
  uint64_t stall_ns = kStallNs;  // so long nothing may complete
  // Of simulations only, and so in no frame: fewer requests pending than the point's, and from when
  // on what is measured counts (see LoopOrders::settle_ns).
  uint32_t most_pending = UINT32_MAX;
  uint64_t settle_ns = 0;
};

// When the phase begins, by the clock of the coordinator's host; for nodes there only.
struct Go {
  std::string host;
  uint64_t now_ns = 0;
};

// So many responses, to requests of this kind (WorkloadTraits::kinds), took so long.
struct LatencyCount {
  uint64_t ns = 0;
  uint64_t count = 0;
  uint8_t kind = 0;
};

// What the requesting, or the responding, threads of a node saw.
struct Report {
  uint64_t requests = 0;    // answered
  uint64_t unanswered = 0;  // requesting: posted, but without an answer at the end
  uint64_t mismatches = 0;  // payloads that were not what the other side sent
  // Requesting: first post and last response, counted from "go".
  uint64_t first_ns = 0;
  uint64_t last_ns = 0;
  // Requesting, in an open loop: the requests that arrived, and in which time; of all threads the
  // longest, as first post and last response are of the first and the last.
  uint64_t arrivals = 0;
  uint64_t arrivals_ns = 0;
  // What the workload counts beside all this, see ShareMetric.
  std::array<uint64_t, 9> counters{};
  MarkLayout layout = MarkLayout::kLastBit;  // what the connections really use
  std::vector<WeighedCost> costs{};          // one per thread that saw messages
  // Of dispatchers, beside what their workers cost: part of the requesters', in the report of the
  // responding threads, since both end with the phase.
  std::vector<WeighedCost> dispatcher_costs{};
  std::vector<LatencyCount> latencies{};  // requesting
};

// One frame; which part is meaningful depends on `kind`.
struct Message {
  MessageKind kind = MessageKind::kBye;
  Hello hello{};
  Setup setup{};
  std::vector<ThreadAddress> addresses{};  // kListening: of this node; kConnect: of all
  Phase phase{};
  Go go{};
  Report report{};
  std::string cause{};  // kFailed
  StatusCode code = StatusCode::kInternal;
};

// The address of this host that a connection uses, without the port.
std::string own_address(const ControlConnection& control);

Status send_message(ControlConnection& control, const Message& message);
inline Status send_failure(ControlConnection& control, const Status& why) {
  return send_message(control,
                      {.kind = MessageKind::kFailed, .cause = why.message(), .code = why.code()});
}

// The next message; an interrupt (interrupt.h) ends the wait like a time-out. kProtocolViolation if
// the peer sent something else.
Result<Message> receive_message(ControlConnection& control, int64_t timeout_ns);
// Only this kind will do; a failure that the peer reports is returned as the failure.
Result<Message> expect_message(ControlConnection& control, MessageKind kind, int64_t timeout_ns);

}  // namespace verbena::bench
