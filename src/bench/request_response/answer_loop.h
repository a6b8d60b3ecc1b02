// The responding thread's loop: answers requests until it is told to stop.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "src/base/runtime.h"
#include "src/bench/experiment/point.h"
#include "src/bench/load/payload_pattern.h"
#include "src/bench/request_response/request_response_settings.h"
#include "verbena/rpc.h"
#include "verbena/status.h"

namespace verbena::bench {

// The handler of a benchmark: the response has a given length, and with kVerify every byte of the
// request is checked and every byte of the response written.
template <bool kVerify>
class AnswerWork {
 public:
  // `keys`: of the payloads, by connection.
  AnswerWork(const Point& point, std::vector<uint64_t> keys)
      : request_bytes_(request_response_settings(point).request_bytes),
        response_bytes_(request_response_settings(point).response_bytes),
        pending_(pending_per_queue_pair(point)),
        keys_(std::move(keys)),
        sequence_(kVerify ? keys_.size() * pending_per_queue_pair(point) : 0) {}

  uint32_t operator()(const Request& request, std::span<char> response) {
    ++requests_;
    bool right = request.bytes.size() == request_bytes_;
    if constexpr (kVerify) {
      const uint64_t key = keys_[request.connection];
      const uint64_t sequence = sequence_[uint64_t{request.connection} * pending_ + request.slot]++;
      right =
          right &&
          PayloadPattern(key, Direction::kRequest, request.slot, sequence).matches(request.bytes);
      PayloadPattern(key, Direction::kResponse, request.slot, sequence)
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
  uint32_t pending_;
  std::vector<uint64_t> keys_;
  std::vector<uint64_t> sequence_;  // by connection and slot
  uint64_t requests_ = 0;
  uint64_t mismatches_ = 0;
};

// How often a responder looked for requests: what it costs to have many mailboxes that are empty
// ("patterns" 7). Counted from the first poll that found a request to the last one.
class LookCount {
 public:
  void count(uint32_t found) {
    ++polls_;
    if (found == 0) return;
    if (first_ == 0) first_ = polls_;
    last_ = polls_;
  }

  uint64_t polls() const { return first_ == 0 ? 0 : last_ - first_ + 1; }

 private:
  uint64_t polls_ = 0;
  uint64_t first_ = 0;
  uint64_t last_ = 0;
};

// Of Report::counters.
enum Counter : size_t { kLooks, kEmptyLooks };

struct Looks {
  uint64_t all = 0;
  uint64_t empty = 0;
};

// What `polls` with `requests` found requests mean in looks. With mailboxes, a poll looks at each
// of `connections`, and where a request was and a connection may have more, at the next one too;
// with receives, a poll takes completions until there is none.
inline Looks looks_of(uint64_t polls, uint64_t requests, uint64_t connections, bool mailboxes,
                      uint32_t pending) {
  if (!mailboxes) return {.all = polls + requests, .empty = polls};
  const uint64_t mailbox_polls = polls * connections;
  if (pending > 1) return {.all = mailbox_polls + requests, .empty = mailbox_polls};
  return {.all = mailbox_polls, .empty = mailbox_polls > requests ? mailbox_polls - requests : 0};
}

// So long a thread polls before it sleeps, where it may: a sleep costs a system call, and the other
// side more for every message while this one is awake only by an event.
inline constexpr uint32_t kIdlePollsBeforeSleep = 256;

// `poll()` answers what has come and returns how many. Returns when told to halt, or why nothing
// will come any more.
template <typename Responder, typename Poll>
Status answer_until_halt(Responder& responder, const std::atomic<bool>& halt, LookCount& looks,
                         bool block, Poll&& poll) {
  // Few: where others want this CPU, each look may cost their time slices.
  constexpr uint32_t kIdlePollsPerLook = 64;
  Waiter waiter;
  uint32_t idle_polls = 0;
  while (!halt.load(std::memory_order_relaxed)) {
    const uint32_t found = poll();
    looks.count(found);
    if (found > 0) {
      idle_polls = 0;
      waiter.progress();
      continue;
    }
    // Asleep it is woken often enough to see `halt`.
    if (!block || idle_polls < kIdlePollsBeforeSleep || !responder.wait(-1)) waiter.idle();
    if (++idle_polls % kIdlePollsPerLook == 0 && !responder.status().ok()) {
      return responder.status();
    }
  }
  return Status::ok_status();
}

}  // namespace verbena::bench
