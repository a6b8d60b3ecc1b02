// What the request/response tests share between their two sides, whichever process each is in: the
// case to run, the payloads, and the two loops.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "src/base/runtime.h"
#include "src/base/sanitizer.h"
#include "tests/support/peer_process.h"
#include "verbena/connection.h"
#include "verbena/device.h"
#include "verbena/rpc.h"

namespace verbena::rpc_test {

// Which device the tests run on: VERBENA_TEST_DEVICE, else the software RNIC.
inline const char* test_device() {
  const char* name = std::getenv("VERBENA_TEST_DEVICE");
  return name != nullptr && *name != '\0' ? name : "soft0";
}
// Of so many messages, the part that this run exchanges: all, fewer in a sanitizer build, or one in
// VERBENA_TEST_THINNING where the machine is slow because it is emulated.
inline uint64_t thinned(uint64_t messages) {
#if VERBENA_ADDRESS_SANITIZER || VERBENA_THREAD_SANITIZER
  constexpr uint64_t kUsual = 4;
#else
  constexpr uint64_t kUsual = 1;
#endif
  const char* text = std::getenv("VERBENA_TEST_THINNING");
  const uint64_t thinning = text != nullptr ? std::strtoull(text, nullptr, 10) : kUsual;
  return thinning > 1 ? messages / thinning + 1 : messages;
}
inline constexpr int64_t kTimeoutNs = 120'000'000'000;
inline constexpr uint32_t kReadableBytes = 1 << 20;

// One design point and its sizes; plain data, so that it can be sent to the other process.
struct Case {
  Protocol protocol = Protocol::kWriteWrite;
  MarkLayout layout = MarkLayout::kLastBit;
  uint32_t pending = 1;
  uint32_t request_max_bytes = 64;
  uint32_t response_max_bytes = 256;
  uint32_t inline_bytes = kDeviceInlineLimit;
  uint32_t signal_interval = 0;
  uint32_t post_batch = 1;
  uint32_t poll_batch = 0;
  uint32_t receive_depth = 0;
  ReceiveQueues receive_queues = ReceiveQueues::kShared;
  bool blocking = false;  // wait for events where that is possible
  bool huge_pages = false;
  bool receive_slack = true;
  uint32_t max_connections = 1;
  bool in_turn = true;  // slots posted in order, or in any
  uint64_t messages = 1000;
  uint64_t seed = 1;
  Transport transport = Transport::kRc;
};

// Short: what is lost on purpose is not to cost the tests much time.
inline constexpr int64_t kResendAfterNs = 200'000;

inline std::string name_of(const Case& c) {
  std::string name = protocol_name(c.protocol);
  if (uses_mark_layout(c.protocol)) name += std::string("/") + mark_layout_name(c.layout);
  if (c.receive_queues != ReceiveQueues::kShared) name += " own receives";
  if (c.blocking) name += " blocking";
  if (c.transport != Transport::kRc) name += std::string(" over ") + transport_name(c.transport);
  return name + " pending " + std::to_string(c.pending);
}

inline RequesterOptions requester_options(const Case& c) {
  RequesterOptions options;
  options.request_max_bytes = c.request_max_bytes;
  options.response_max_bytes = c.response_max_bytes;
  options.pending = c.pending;
  options.inline_bytes = c.inline_bytes;
  options.signal_interval = c.signal_interval;
  options.post_batch = c.post_batch;
  options.poll_batch = c.poll_batch;
  options.blocking = c.blocking;
  options.huge_pages = c.huge_pages;
  options.receive_slack = c.receive_slack;
  options.transport = c.transport;
  options.resend_after_ns = kResendAfterNs;
  options.resend_limit = 100'000;  // the tests' own patience decides
  options.handshake_timeout_ns = kTimeoutNs;
  return options;
}

inline ResponderOptions responder_options(const Case& c, std::span<char> readable) {
  ResponderOptions options;
  options.request_max_bytes = c.request_max_bytes;
  options.response_max_bytes = c.response_max_bytes;
  options.pending = c.pending;
  options.max_connections = c.max_connections;
  options.inline_bytes = c.inline_bytes;
  options.signal_interval = c.signal_interval;
  options.post_batch = c.post_batch;
  options.receive_depth = c.receive_depth;
  options.receive_queues = c.receive_queues;
  options.transport = c.transport;
  options.blocking = c.blocking;
  options.huge_pages = c.huge_pages;
  options.handshake_timeout_ns = kTimeoutNs;
  if (c.protocol == Protocol::kRead) options.readable = readable;
  return options;
}

// --- payloads: every byte follows from the message's nonce ---

inline uint64_t pattern_word(uint64_t nonce, uint64_t index) {
  uint64_t x = (nonce + index) * 0x9e3779b97f4a7c15;
  return x ^ (x >> 29);
}

inline void fill_pattern(std::span<char> bytes, uint64_t nonce) {
  for (size_t at = 0; at < bytes.size(); at += 8) {
    const uint64_t word = pattern_word(nonce, at / 8);
    std::memcpy(bytes.data() + at, &word, std::min<size_t>(8, bytes.size() - at));
  }
}

inline bool has_pattern(std::span<const char> bytes, uint64_t nonce) {
  for (size_t at = 0; at < bytes.size(); at += 8) {
    const uint64_t word = pattern_word(nonce, at / 8);
    if (std::memcmp(bytes.data() + at, &word, std::min<size_t>(8, bytes.size() - at)) != 0) {
      return false;
    }
  }
  return true;
}

// Requests of at least this size say what response they want; smaller ones are sent back inverted.
struct Ask {
  uint64_t nonce;
  uint32_t response_bytes;
  uint32_t request_bytes;
};

inline std::vector<char> readable_memory() {
  std::vector<char> memory(kReadableBytes);
  fill_pattern(memory, 77);
  return memory;
}

// --- responder ---

class Server {
 public:
  // Answers a request, or with three bytes that nobody asks for if anything is wrong with it.
  uint32_t operator()(const Request& request, std::span<char> response) {
    ++requests;
    const std::span<const char> bytes = request.bytes;
    if (bytes.size() < sizeof(Ask)) {
      for (size_t i = 0; i < bytes.size(); ++i) response[i] = static_cast<char>(~bytes[i]);
      return static_cast<uint32_t>(bytes.size());
    }
    Ask ask;
    std::memcpy(&ask, bytes.data(), sizeof(ask));
    if (ask.request_bytes != bytes.size() || ask.response_bytes > response.size() ||
        !has_pattern(bytes.subspan(sizeof(ask)), ask.nonce)) {
      ++bad_requests;
      return 3;
    }
    fill_pattern(response.first(ask.response_bytes), ~ask.nonce);
    return ask.response_bytes;
  }

  uint64_t requests = 0;
  uint64_t bad_requests = 0;
};

// Serves until every requester has gone.
inline void serve(Responder& responder, Server& server) {
  Waiter waiter;
  while (responder.status().ok()) {
    if (responder.poll(server) > 0) {
      waiter.progress();
    } else if (!responder.wait(-1)) {
      waiter.idle();
    }
  }
}

// --- requester ---

struct Outcome {
  uint64_t responses = 0;
  uint32_t most_at_once = 0;  // responses of one poll
  uint64_t wrong = 0;         // responses that are not what their request asked for
  bool stuck = false;         // no response for kTimeoutNs
  Status status;              // of the requester, at the end
};

class Client {
 public:
  explicit Client(const Case& c)
      : case_(c), random_(c.seed), slots_(c.pending), readable_(readable_memory()) {}

  // Posts and checks `case.messages` requests; fewer if the connection fails.
  // `on_response(responses so far)` is called after each.
  template <typename OnResponse>
  Outcome run(Requester& requester, OnResponse&& on_response) {
    Waiter waiter;
    uint64_t last_progress_ns = now_ns();
    while (!finished(requester)) {
      const uint32_t found = step(requester, on_response);
      if (found > 0) {
        waiter.progress();
        last_progress_ns = now_ns();
      } else {
        if (!requester.wait(-1)) waiter.idle();
        if (now_ns() - last_progress_ns > kTimeoutNs) {
          outcome_.stuck = true;
          break;
        }
      }
    }
    outcome_.status = requester.status();
    return outcome_;
  }

  // One round of run(), for threads with several connections: posts what may be posted, takes what
  // came, and returns how many responses that were. `requester` is one, or offers the three calls
  // that this uses.
  template <typename RequesterLike, typename OnResponse>
  uint32_t step(RequesterLike& requester, OnResponse&& on_response) {
    while (posted_ < case_.messages) {
      const uint32_t slot = choose_slot(posted_);
      if (slots_[slot].waiting) break;
      const uint32_t bytes = prepare(slot, requester.request_buffer(slot));
      const PostResult result = requester.try_post(slot, bytes);
      if (result != PostResult::kPosted) break;
      slots_[slot].waiting = true;
      ++posted_;
    }
    const uint32_t found = requester.poll([&](uint32_t slot, std::span<const char> response) {
      check(slot, response);
      ++outcome_.responses;
      on_response(outcome_.responses);
    });
    outcome_.most_at_once = std::max(outcome_.most_at_once, found);
    return found;
  }
  bool complete() const { return outcome_.responses >= case_.messages; }
  bool finished(const Requester& requester) const { return complete() || !requester.status().ok(); }
  const Outcome& outcome() const { return outcome_; }

 private:
  struct Slot {
    bool waiting = false;
    std::vector<char> small_request;
    uint64_t nonce = 0;
    uint32_t response_bytes = 0;
    ReadRequest read{};
  };

  uint32_t choose_slot(uint64_t posted) {
    return static_cast<uint32_t>(case_.in_turn ? posted % case_.pending
                                               : random_.below(case_.pending));
  }

  // Small sizes are as likely as large ones, and the limits are hit.
  uint32_t random_size(uint32_t max_bytes) {
    switch (random_.below(4)) {
      case 0:
        return max_bytes;
      case 1:
        return static_cast<uint32_t>(random_.below(std::min<uint64_t>(max_bytes, 80) + 1));
      default:
        return static_cast<uint32_t>(random_.below(uint64_t{max_bytes} + 1));
    }
  }

  uint32_t prepare(uint32_t slot, char* request) {
    Slot& expected = slots_[slot];
    if (case_.protocol == Protocol::kRead) {
      expected.read.bytes = random_size(std::min(case_.response_max_bytes, kReadableBytes));
      expected.read.offset = random_.below(kReadableBytes - expected.read.bytes + 1);
      std::memcpy(request, &expected.read, sizeof(ReadRequest));
      return sizeof(ReadRequest);
    }
    const uint32_t bytes = random_size(case_.request_max_bytes);
    expected.small_request.clear();
    expected.response_bytes = 0;
    expected.nonce = random_.next();
    if (bytes < sizeof(Ask)) {
      fill_pattern({request, bytes}, expected.nonce);
      expected.small_request.assign(request, request + bytes);
      return bytes;
    }
    expected.response_bytes = random_size(case_.response_max_bytes);
    const Ask ask = {expected.nonce, expected.response_bytes, bytes};
    std::memcpy(request, &ask, sizeof(ask));
    fill_pattern({request + sizeof(ask), bytes - sizeof(ask)}, ask.nonce);
    return bytes;
  }

  void check(uint32_t slot, std::span<const char> response) {
    if (slot >= slots_.size() || !slots_[slot].waiting) {
      ++outcome_.wrong;
      return;
    }
    Slot& expected = slots_[slot];
    expected.waiting = false;
    if (!is_expected(expected, response)) ++outcome_.wrong;
  }

  bool is_expected(const Slot& expected, std::span<const char> response) const {
    if (case_.protocol == Protocol::kRead) {
      return response.size() == expected.read.bytes &&
             std::memcmp(response.data(), readable_.data() + expected.read.offset,
                         response.size()) == 0;
    }
    if (expected.response_bytes == 0 || !expected.small_request.empty()) {
      // Sent back inverted, unless it asked for nothing.
      if (response.size() != expected.small_request.size()) return false;
      for (size_t i = 0; i < response.size(); ++i) {
        if (response[i] != static_cast<char>(~expected.small_request[i])) return false;
      }
      return true;
    }
    return response.size() == expected.response_bytes && has_pattern(response, ~expected.nonce);
  }

  Case case_;
  Random random_;
  std::vector<Slot> slots_;
  std::vector<char> readable_;
  uint64_t posted_ = 0;
  Outcome outcome_;
};

// --- the other process ---

// What rpc_peer_process is told over the control connection that it opens to the test.
enum class Role : uint32_t { kResponder, kRequester };
struct Task {
  Role role = Role::kResponder;
  Case c;
};
inline constexpr uint32_t kTaskType = 0x7a51;
using test::kSecretVariable;
inline constexpr int kExitBadRequests = 3;
inline constexpr int kExitBadResponses = 4;
inline constexpr int kExitFailed = 5;
inline constexpr int kExitNotOnce = 6;  // the handler ran more or less often than requests came

}  // namespace verbena::rpc_test
