// The responder's loop: answers requests until the requester says something on the control
// connection.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "src/base/runtime.h"
#include "src/bench/interrupt.h"
#include "src/bench/messages.h"
#include "src/bench/payload_pattern.h"
#include "src/bench/point.h"
#include "src/bench/poll_cost.h"
#include "verbena/connection.h"
#include "verbena/rpc.h"

namespace verbena::bench {

// The handler of a benchmark: the response has a given length, and with kVerify every byte of the
// request is checked and every byte of the response written.
template <bool kVerify>
class AnswerWork {
 public:
  AnswerWork(const Point& point, uint64_t key)
      : request_bytes_(point.request_bytes),
        response_bytes_(point.response_bytes),
        key_(key),
        sequence_(kVerify ? point.pending : 0) {}

  uint32_t operator()(const Request& request, std::span<char> response) {
    ++requests_;
    bool right = request.bytes.size() == request_bytes_;
    if constexpr (kVerify) {
      const uint64_t sequence = sequence_[request.slot]++;
      right =
          right &&
          PayloadPattern(key_, Direction::kRequest, request.slot, sequence).matches(request.bytes);
      PayloadPattern(key_, Direction::kResponse, request.slot, sequence)
          .fill(response.first(response_bytes_));
    }
    if (!right) [[unlikely]]
      ++mismatches_;
    return response_bytes_;
  }

  uint64_t requests() const { return requests_; }
  uint64_t mismatches() const { return mismatches_; }

 private:
  uint32_t request_bytes_;
  uint32_t response_bytes_;
  uint64_t key_;
  std::vector<uint64_t> sequence_;
  uint64_t requests_ = 0;
  uint64_t mismatches_ = 0;
};

// `poll()` answers what has come and returns how many. Ends with the next message of the requester,
// or with the reason why there will be none.
template <typename Responder, typename Poll>
Result<Message> answer_until_message(Responder& responder, ControlConnection& control,
                                     Poll&& poll) {
  // Looking at the control connection is a system call: only where nothing came for a while.
  constexpr uint64_t kSilenceNs = 1'000'000;
  constexpr uint32_t kIdlePollsPerClock = 4096;
  Waiter waiter;
  uint32_t idle_polls = 0;
  uint64_t silent_since_ns = 0;
  for (;;) {
    if (poll() > 0) {
      idle_polls = 0;
      silent_since_ns = 0;
      waiter.progress();
      continue;
    }
    waiter.idle();
    // Beyond some thousand looks the waiter yields the CPU each time, which costs more than a
    // clock.
    if (++idle_polls < kIdlePollsPerClock) continue;
    const uint64_t now = now_ns();
    if (silent_since_ns == 0) silent_since_ns = now;
    if (now - silent_since_ns < kSilenceNs) continue;
    silent_since_ns = now;
    Result<Message> message = receive_message(control, 0);
    if (message.ok() || message.status().code() != StatusCode::kTimeout) return message;
    if (!responder.status().ok()) return responder.status();
    if (interrupted()) return Status(StatusCode::kUnavailable, "interrupted");
  }
}

// READ needs no responder: its process sleeps until the requester says something.
template <typename Responder>
Result<Message> sleep_until_message(Responder& responder, ControlConnection& control) {
  constexpr int64_t kLookNs = 100'000'000;
  for (;;) {
    Result<Message> message = receive_message(control, kLookNs);
    if (message.ok() || message.status().code() != StatusCode::kTimeout) return message;
    const auto nothing = [](const Request&, std::span<char>) { return 0u; };
    responder.poll(nothing);
    if (!responder.status().ok()) return responder.status();
    if (interrupted()) return Status(StatusCode::kUnavailable, "interrupted");
  }
}

}  // namespace verbena::bench
