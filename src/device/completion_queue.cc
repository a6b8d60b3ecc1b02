#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

#include "src/base/runtime.h"
#include "src/device/explain.h"
#include "src/device/sim/control.h"
#include "src/device/verbs_control.h"
#include "verbena/device.h"

namespace verbena {

Result<CompletionChannel> CompletionChannel::create(const Device& device) {
  const VerbsControl& control = device.control();
  ibv_comp_channel* channel = control.create_comp_channel(device.get());
  if (channel == nullptr) {
    return verbs_error(
        control, fmt::format("cannot make a completion channel on {}", device.info().name), errno);
  }
  return CompletionChannel({channel, control});
}

Result<ibv_cq*> CompletionChannel::wait(int64_t timeout_ns) {
  if (&handle_.control() == &sim::control()) {
    if (sim::wait_for_event(get(), timeout_ns)) return take_event();
    return Status(StatusCode::kTimeout,
                  fmt::format("no completion event within {} ns", timeout_ns));
  }
  constexpr uint64_t kNsPerMs = 1'000'000;
  const uint64_t start_ns = now_ns();
  pollfd readable{.fd = get()->fd, .events = POLLIN, .revents = 0};
  for (;;) {
    int timeout_ms = -1;
    if (timeout_ns >= 0) {
      const uint64_t gone_ns = now_ns() - start_ns;
      const uint64_t left_ns =
          gone_ns < static_cast<uint64_t>(timeout_ns) ? timeout_ns - gone_ns : 0;
      timeout_ms =
          static_cast<int>(std::min<uint64_t>((left_ns + kNsPerMs - 1) / kNsPerMs, INT_MAX));
    }
    const int ready = poll(&readable, 1, timeout_ms);
    if (ready > 0) break;
    if (ready < 0 && errno != EINTR) {
      return Status(status_code_of_errno(errno),
                    fmt::format("cannot wait on a completion channel: {}", std::strerror(errno)));
    }
    if (ready == 0 && timeout_ms < INT_MAX) {
      return Status(StatusCode::kTimeout,
                    fmt::format("no completion event within {} ns", timeout_ns));
    }
  }
  return take_event();
}

Result<ibv_cq*> CompletionChannel::take_event() {
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  if (handle_.control().get_cq_event(get(), &cq, &context) != 0) {
    return verbs_error(handle_.control(), "cannot read a completion event", errno);
  }
  handle_.control().ack_cq_events(cq, 1);
  return cq;
}

Result<CompletionQueue> CompletionQueue::create(const Device& device,
                                                const CompletionQueueOptions& options) {
  const VerbsControl& control = device.control();
  if (options.depth_cqes == 0 || options.depth_cqes > INT_MAX) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("a completion queue needs 1 to {} CQEs, not {}",
                              device.info().max_cqes, options.depth_cqes));
  }
  ibv_cq* cq =
      control.create_cq(device.get(), static_cast<int>(options.depth_cqes), options.user_context,
                        options.channel != nullptr ? options.channel->get() : nullptr, 0);
  if (cq == nullptr) return explain_completion_queue_error(device, options, errno);
  return CompletionQueue({cq, control});
}

}  // namespace verbena
