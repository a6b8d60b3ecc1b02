// The responding thread's loop: answers requests until it is told to stop.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "src/base/runtime.h"
#include "src/bench/experiment/point.h"
#include "src/bench/load/payload_pattern.h"
#include "src/bench/load/poll_cost.h"
#include "src/bench/request_response/request_response_settings.h"
#include "verbena/data_path.h"
#include "verbena/rpc.h"
#include "verbena/status.h"

namespace verbena::bench {

// The handler of a benchmark: the response has a given length, and with `verify` every byte of the
// request is checked and every byte of the response written.
class AnswerWork {
 public:
  // `keys`: of the payloads, by connection.
  AnswerWork(const Point& point, bool verify, std::vector<uint64_t> keys)
      : request_bytes_(request_response_settings(point).request_bytes),
        response_bytes_(request_response_settings(point).response_bytes),
        pending_(pending_per_queue_pair(point)),
        verify_(verify),
        keys_(std::move(keys)),
        sequence_(verify ? keys_.size() * pending_per_queue_pair(point) : 0) {}

  [[gnu::always_inline]] uint32_t operator()(const Request& request, std::span<char> response) {
    ++requests_;
    const bool right =
        (!verify_ || verify(request, response)) && request.bytes.size() == request_bytes_;
    if (!right) [[unlikely]]
      ++mismatches_;
    return response_bytes_;
  }

  uint64_t requests() const { return requests_; }
  uint64_t mismatches() const { return mismatches_; }

 private:
  // Whether the request is right; writes the response. Not inlined: a design's loop has room for
  // what all messages need.
  bool verify(const Request& request, std::span<char> response);

  uint32_t request_bytes_;
  uint32_t response_bytes_;
  uint32_t pending_;
  bool verify_;
  std::vector<uint64_t> keys_;
  std::vector<uint64_t> sequence_;  // by connection and slot
  uint64_t requests_ = 0;
  uint64_t mismatches_ = 0;
};

// What the polls of a responding thread found: what it costs to have many mailboxes that are empty
// ("patterns" 7). From the first poll that found a request to the last one, so that the waits
// before and after the load do not count.
class PollCount {
 public:
  void count(uint32_t found) {
    if (found != 0 || !begun_) read(found);
  }

  DataPathStatistics between() const { return begun_ ? last_ - first_ : DataPathStatistics(); }

 private:
  // Not in the loop, where it changes what compilers do with the poll.
  __attribute__((noinline)) void read(uint32_t found) {
    begun_ = found != 0;
    (begun_ ? last_ : first_) = data_path_statistics();
  }

  bool begun_ = false;
  DataPathStatistics first_ = data_path_statistics();
  DataPathStatistics last_;
};

// So long a thread polls before it sleeps, where it may: a sleep costs a system call, and the other
// side more for every message while this one is awake only by an event.
inline constexpr uint32_t kIdlePollsBeforeSleep = 256;

// Answers what comes by `work`; with `cost`, that measures each poll. Returns when told to halt, or
// why nothing will come any more.
template <typename Responder, typename Work>
Status answer_until_halt(Responder& responder, const std::atomic<bool>& halt, PollCount& polls,
                         bool block, PollCost* cost, Work& work) {
  // Few: where others want this CPU, each poll may cost their time slices.
  constexpr uint32_t kIdlePollsPerCheck = 64;
  Waiter waiter;
  uint32_t idle_polls = 0;
  while (!halt.load(std::memory_order_relaxed)) {
    const uint32_t found = poll_costed(cost, responder, work);
    polls.count(found);
    if (found > 0) {
      idle_polls = 0;
      waiter.progress();
      continue;
    }
    // Asleep it is woken often enough to see `halt`.
    if (!block || idle_polls < kIdlePollsBeforeSleep || !responder.wait(-1)) waiter.idle();
    if (++idle_polls % kIdlePollsPerCheck == 0 && !responder.status().ok()) {
      return responder.status();
    }
  }
  return Status::ok_status();
}

}  // namespace verbena::bench
