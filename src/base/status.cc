#include "verbena/status.h"

#include <algorithm>

namespace verbena {

Status::Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {
  std::replace_if(
      message_.begin(), message_.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
}

const char* status_code_name(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "ok";
    case StatusCode::kInvalidArgument:
      return "invalid_argument";
    case StatusCode::kNotFound:
      return "not_found";
    case StatusCode::kLimitExceeded:
      return "limit_exceeded";
    case StatusCode::kPermissionDenied:
      return "permission_denied";
    case StatusCode::kUnavailable:
      return "unavailable";
    case StatusCode::kTimeout:
      return "timeout";
    case StatusCode::kProtocolViolation:
      return "protocol_violation";
    case StatusCode::kUnsupported:
      return "unsupported";
    case StatusCode::kInternal:
      return "internal";
  }
  return "unknown";
}

}  // namespace verbena
