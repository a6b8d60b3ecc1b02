// What the two sides of a benchmark tell each other over the control connection. The requester
// leads:
//
//   requester                              responder
//     setup: the point                ->     makes a responder
//                                     <-     ready, or failed and why
//     (the protocol's own handshake, verbena/rpc.h)
//     phase: warm-up, cost or timed   ->
//                                     <-     begun
//     ... requests and responses ...
//     end of phase                    ->
//                                     <-     report
//     (further phases)
//     tear down                       ->
//                                     <-     done, or failed and why
//     (further points)
//     bye                             ->     ends
//
// The responder may say "failed" at any time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "src/bench/point.h"
#include "src/bench/poll_cost.h"
#include "verbena/connection.h"
#include "verbena/status.h"

namespace verbena::bench {

// For each step until a point is connected: both sides may have to register gigabytes.
inline constexpr int64_t kSetupTimeoutNs = 60'000'000'000;

enum class MessageKind : uint8_t {
  kSetup = 1,
  kReady,
  kPhase,
  kBegun,
  kEndOfPhase,
  kReport,
  kTearDown,
  kDone,
  kBye,
  kFailed,
};

enum class PhaseKind : uint8_t {
  kWarmUp,  // every payload byte is checked, nothing is measured
  kCost,    // what a message costs the CPU is measured, nothing else
  kTimed,
};

struct Setup {
  Point point;
  uint64_t run_key = 0;  // of the payloads, see payload_pattern.h
};

struct Phase {
  PhaseKind kind = PhaseKind::kWarmUp;
  bool verify = false;
  uint64_t number = 0;  // within the run, part of the payloads' key
};

struct Report {
  uint64_t requests = 0;
  uint64_t mismatches = 0;  // requests that were not what the requester sent
  std::optional<CpuCost> cost;
};

// One frame; which part is meaningful depends on `kind`.
struct Message {
  MessageKind kind = MessageKind::kBye;
  Setup setup{};
  Phase phase{};
  Report report{};
  std::string cause{};  // kFailed
  StatusCode code = StatusCode::kInternal;
};

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
