// What raw verbs vary ("memsem" III): the verb, how several buffers become work requests, and how
// addresses follow each other.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <span>

#include "src/bench/experiment/point.h"
#include "src/bench/experiment/socket_place.h"
#include "verbena/device.h"
#include "verbena/remote_vector.h"

namespace verbena::bench {

enum class Operation : uint8_t {
  kWrite,
  kRead,
  kSend,
  kFetchAdd,
  kCompareSwap,
  kPoll,  // no verb: a round of polls of the marks of channels into which nobody writes
};

// Of Report::counters, where messages may be lost: SENDs so far that were posted, and that arrived.
enum VerbsCounter : size_t { kSentMessages, kArrivedMessages };

enum class AccessPattern : uint8_t { kSequential, kRandom };

inline constexpr std::array kOperations = {Operation::kWrite,       Operation::kRead,
                                           Operation::kSend,        Operation::kFetchAdd,
                                           Operation::kCompareSwap, Operation::kPoll};
inline constexpr std::array kAccessPatterns = {AccessPattern::kSequential, AccessPattern::kRandom};

inline constexpr const char* operation_name(Operation operation) {
  switch (operation) {
    case Operation::kWrite:
      return "write";
    case Operation::kRead:
      return "read";
    case Operation::kSend:
      return "send";
    case Operation::kFetchAdd:
      return "fetch-add";
    case Operation::kCompareSwap:
      return "compare-swap";
    case Operation::kPoll:
      break;
  }
  return "poll";
}

inline constexpr const char* access_pattern_name(AccessPattern pattern) {
  return pattern == AccessPattern::kRandom ? "rand" : "seq";
}

// Whether entries travel, so that there are ways to put them together.
inline constexpr bool has_entries(Operation operation) {
  return operation == Operation::kWrite || operation == Operation::kRead ||
         operation == Operation::kSend;
}

inline constexpr bool is_atomic(Operation operation) {
  return operation == Operation::kFetchAdd || operation == Operation::kCompareSwap;
}

// What a point about raw verbs has beside Point's own members. A thread and its queue pair have a
// region on each side.
struct VerbsSettings {
  Operation operation = Operation::kWrite;
  uint32_t size_bytes = 64;  // of an entry
  uint32_t entries = 1;      // of an operation
  VectorMethod method = VectorMethod::kSgl;
  AccessPattern local = AccessPattern::kSequential;
  AccessPattern remote = AccessPattern::kSequential;
  uint64_t region_bytes = uint64_t{1} << 20;
  Transport transport = Transport::kRc;
  uint32_t peers = 1;  // nodes that a thread reaches in turn
  // Of the threads that post and of their region, and the same of the other side.
  SocketPlace core = SocketPlace::kAny;
  SocketPlace memory = SocketPlace::kAny;
  SocketPlace remote_core = SocketPlace::kAny;
  SocketPlace remote_memory = SocketPlace::kAny;

  uint32_t requests_per_operation() const {
    return method == VectorMethod::kDoorbell ? entries : 1;
  }
  // Single work requests, which go to the next peer each (peers_requester.h).
  bool takes_turns() const { return transport != Transport::kRc || peers > 1; }
  // Of a receive, in front of the message.
  uint32_t header_bytes() const { return transport == Transport::kUd ? sizeof(ibv_grh) : 0; }
  uint64_t operation_bytes() const { return uint64_t{entries} * size_bytes; }
  uint64_t request_bytes() const { return operation_bytes() / requests_per_operation(); }
};

inline const VerbsSettings& verbs_settings(const Point& point) {
  return settings_of<VerbsSettings>(point);
}
inline VerbsSettings& verbs_settings(Point& point) { return settings_of<VerbsSettings>(point); }

}  // namespace verbena::bench
