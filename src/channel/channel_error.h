// Why a channel stopped: plain data, so that the data path can note it without allocating. The
// connection's owner turns it into a Status.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

namespace verbena::channel {

struct ChannelError {
  enum class Kind : uint8_t { kNone, kCompletion, kPost, kPoll, kViolation };

  Kind kind = Kind::kNone;
  ibv_wc_status completion : 16 = IBV_WC_SUCCESS;  // kCompletion
  int error = 0;               // kPost: what the device answered, an errno value
  const char* violation = "";  // kViolation: what the peer did

  explicit operator bool() const { return kind != Kind::kNone; }

  static ChannelError completed_with(ibv_wc_status status) {
    return {.kind = Kind::kCompletion, .completion = status};
  }
  static ChannelError post_failed(int error) { return {.kind = Kind::kPost, .error = error}; }
  static ChannelError poll_failed() { return {.kind = Kind::kPoll}; }
  static ChannelError peer_violated(const char* what) {
    return {.kind = Kind::kViolation, .violation = what};
  }
};

}  // namespace verbena::channel
