#include "src/rpc/unreliable.h"

#include <fmt/format.h>

#include "src/base/runtime.h"

namespace verbena::rpc {

bool ResendClock::tick_is_over() {
  looks_ = 0;
  const uint64_t now = verbena::now_ns();
  if (now - now_ns_ < resend_after_ns_ / kTicks) return false;
  now_ns_ = now;
  return true;
}

Status check_resending(const RequesterOptions& options) {
  constexpr int64_t kLeastNs = 1000;
  constexpr int64_t kMostNs = 10'000'000'000;
  constexpr uint32_t kMostTimes = 1'000'000;
  if (options.resend_after_ns < kLeastNs || options.resend_after_ns > kMostNs) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("resend_after_ns is {}; choose {} to {}", options.resend_after_ns,
                              kLeastNs, kMostNs));
  }
  if (options.resend_limit > kMostTimes) {
    return Status(StatusCode::kInvalidArgument, fmt::format("resend_limit is {}; choose at most {}",
                                                            options.resend_limit, kMostTimes));
  }
  return Status::ok_status();
}

Status never_answered(const KeptRequest& request, uint32_t slot, const std::string& peer) {
  return Status(
      StatusCode::kUnavailable,
      fmt::format("{} did not answer the request in slot {}, which was sent {} times; the network "
                  "loses what is sent, or that process is stopped or does not poll: see to it, or "
                  "raise resend_limit or resend_after_ns, and connect anew",
                  peer, slot, request.sent));
}

}  // namespace verbena::rpc
