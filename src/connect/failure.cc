#include "src/connect/failure.h"

#include <fmt/format.h>

#include <cstring>

#include "src/base/assert.h"
#include "verbena/device.h"

namespace verbena::connect {

using channel::ChannelError;

Status explain_failure(const ChannelError& error, const std::string& peer) {
  switch (error.kind) {
    case ChannelError::Kind::kCompletion:
      return Status(StatusCode::kUnavailable,
                    fmt::format("the connection to {} broke: {}", peer,
                                explain_completion_error(error.completion)));
    case ChannelError::Kind::kPost:
      return Status(
          StatusCode::kUnavailable,
          fmt::format("the connection to {} broke: the device takes no more work requests "
                      "for it ({}); connect anew",
                      peer, std::strerror(error.error)));
    case ChannelError::Kind::kPoll:
      return Status(StatusCode::kUnavailable,
                    fmt::format("the connection to {} broke: the completion queue cannot be polled "
                                "any more (overrun, or the device failed); connect anew",
                                peer));
    case ChannelError::Kind::kViolation:
      return Status(StatusCode::kProtocolViolation,
                    fmt::format("{} broke the protocol: {}; run the same release on both sides",
                                peer, error.violation));
    case ChannelError::Kind::kNone:
      break;
  }
  VERBENA_ASSERT(false && "explained without an error");
  return Status(StatusCode::kInternal, "no error");
}

Status diagnose(const ChannelError& sending, const ChannelError& receiving,
                const ControlConnection& control, const std::string& peer) {
  VERBENA_ASSERT(sending || receiving);
  if (receiving.kind == ChannelError::Kind::kViolation) return explain_failure(receiving, peer);
  if (control.peer_closed()) return peer_is_gone(peer);
  const bool sending_is_consequence =
      !sending || (sending.kind == ChannelError::Kind::kCompletion &&
                   sending.completion == IBV_WC_WR_FLUSH_ERR);
  return explain_failure(sending_is_consequence && receiving ? receiving : sending, peer);
}

Status peer_is_gone(const std::string& peer) {
  return Status(StatusCode::kUnavailable,
                fmt::format("{} is gone: it closed its connection or its process ended; start it "
                            "again and connect anew",
                            peer));
}

Status connection_closed(const std::string& peer) {
  return Status(StatusCode::kUnavailable,
                fmt::format("the connection to {} was closed on this side", peer));
}

}  // namespace verbena::connect
