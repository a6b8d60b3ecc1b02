// The way from a thread to a proxy and back: two rings in shared memory, one for requests and one
// for results ("memsem" IV-B). Each has one writer and one reader. Data path.
//
//   requests   the thread fills an entry and publishes its word; the proxy consumes and clears it
//   results    the proxy publishes an outcome; the thread consumes and clears it
//
// Results come in the order of the requests. A request's entry is free when its result was
// consumed, so the thread alone knows whether there is room, and bounds itself. A word is cleared
// by its reader with a relaxed store: its writer stores there again only after it consumed a word
// that the reader published later.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "src/base/assert.h"
#include "verbena/data_path.h"
#include "verbena/remote.h"

namespace verbena::remote {

enum class RequestKind : uint8_t {
  kRead,
  kWrite,
  kCompareAndSwap,
  kFetchAndAdd,
  kLeave,  // the thread sends no more
};

struct ProxyRequest {
  RequestKind kind = RequestKind::kRead;
  Order order = Order::kPosted;
  uint64_t offset_bytes = 0;  // in the part
  LocalSlice local = {};      // of READs and WRITEs
  uint64_t operand = 0;       // what is expected, or added
  uint64_t desired = 0;
};

// What the word of a result says. 0 is an empty entry.
enum class Outcome : uint32_t { kNone, kDone, kBroken };

struct ProxyResult {
  Outcome outcome = Outcome::kNone;
  uint64_t before = 0;  // of an atomic
};

class SocketLane {
 public:
  // Room for `most` requests without their results.
  explicit SocketLane(uint32_t most)
      : most_(most), requests_(std::bit_ceil(most)), results_(requests_.size()) {}
  SocketLane(const SocketLane&) = delete;
  SocketLane& operator=(const SocketLane&) = delete;

  // --- the thread ---

  // There is room: the caller has bounded itself.
  void push(const ProxyRequest& request) {
    VERBENA_ASSERT(pushed_ - pulled_ < most_);
    RequestEntry& entry = requests_[place(pushed_)];
    entry.request = request;
    entry.number = ++pushed_;
    publish_word<uint32_t>(&entry.ready, 1);
  }
  // The next result, or kNone. Needs a request without one.
  ProxyResult pull() {
    VERBENA_ASSERT(pulled_ < pushed_);
    ResultEntry& entry = results_[place(pulled_)];
    const auto outcome = static_cast<Outcome>(consume_word(&entry.outcome));
    if (outcome == Outcome::kNone) return {};
    VERBENA_ASSERT(entry.number == pulled_ + 1);
    ++pulled_;
    store_word<uint32_t>(&entry.outcome, 0);
    return {outcome, entry.before};
  }
  uint64_t without_result() const { return pushed_ - pulled_; }

  // --- the proxy ---

  // The oldest request that was not accepted; null if there is none.
  const ProxyRequest* next() {
    RequestEntry& entry = requests_[place(accepted_)];
    if (!seen_ && consume_word(&entry.ready) == 0) return nullptr;
    seen_ = true;
    VERBENA_ASSERT(entry.number == accepted_ + 1);
    return &entry.request;
  }
  void accept() {
    VERBENA_ASSERT(seen_);
    store_word<uint32_t>(&requests_[place(accepted_)].ready, 0);
    seen_ = false;
    ++accepted_;
  }
  // Of the oldest accepted request without an answer.
  void answer(const ProxyResult& result) {
    VERBENA_ASSERT(answered_ < accepted_ && result.outcome != Outcome::kNone);
    ResultEntry& entry = results_[place(answered_)];
    entry.before = result.before;
    entry.number = ++answered_;
    publish_word(&entry.outcome, static_cast<uint32_t>(result.outcome));
  }
  uint64_t unanswered() const { return accepted_ - answered_; }

 private:
  // Lines of their own: each is written by one side while the other one reads its neighbours.
  struct alignas(64) RequestEntry {
    uint32_t ready = 0;
    uint64_t number = 0;
    ProxyRequest request;
  };
  struct alignas(64) ResultEntry {
    uint32_t outcome = 0;
    uint64_t number = 0;
    uint64_t before = 0;
  };

  size_t place(uint64_t number) const { return number & (requests_.size() - 1); }

  const uint64_t most_;
  std::vector<RequestEntry> requests_;
  std::vector<ResultEntry> results_;
  // Of the thread.
  alignas(64) uint64_t pushed_ = 0;
  uint64_t pulled_ = 0;
  // Of the proxy.
  alignas(64) uint64_t accepted_ = 0;
  uint64_t answered_ = 0;
  bool seen_ = false;  // the next request was consumed, and could not be posted yet
};

}  // namespace verbena::remote
