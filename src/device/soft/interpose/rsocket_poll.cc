// rpoll() of librdmacm before release 63 loses count of its pollers whenever it ends by its
// time-out; one or two calls later it spins for ever in rs_poll_enter(). Programs that poll
// datagram rsockets, as udpong does, meet this with the first lost or late datagram. So here a
// time-out is a descriptor to be polled, and librdmacm is asked to wait without end.
#include <poll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "src/device/soft/interpose/installed.h"

// As <rdma/rsocket.h> has it, which Verbena is built without.
extern "C" int rpoll(pollfd* descriptors, nfds_t count, int timeout_ms);

namespace verbena::soft::interpose {
namespace {

using Poll = decltype(&::rpoll);

// A descriptor that becomes readable after `timeout_ms`; negative if there is none.
int make_timer(int timeout_ms) {
  constexpr int kMsPerS = 1000;
  constexpr long kNsPerMs = 1'000'000;
  const int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  if (timer < 0) return timer;
  const itimerspec once{
      .it_interval = {},
      .it_value = {.tv_sec = timeout_ms / kMsPerS, .tv_nsec = timeout_ms % kMsPerS * kNsPerMs}};
  if (timerfd_settime(timer, 0, &once, nullptr) == 0) return timer;
  close(timer);
  return -1;
}

// Closed when the thread is cancelled, too, which unwinds it.
class Timer {
 public:
  explicit Timer(int timeout_ms) : fd_(make_timer(timeout_ms)) {}
  ~Timer() {
    if (fd_ >= 0) close(fd_);
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

int poll_with_timer(Poll next, pollfd* descriptors, nfds_t count, int timer) {
  std::vector<pollfd> polled(descriptors, descriptors + count);
  polled.push_back({.fd = timer, .events = POLLIN, .revents = 0});
  const int ready = next(polled.data(), polled.size(), -1);
  if (ready < 0) return ready;
  for (nfds_t i = 0; i < count; ++i) descriptors[i].revents = polled[i].revents;
  return polled.back().revents != 0 ? ready - 1 : ready;
}

}  // namespace
}  // namespace verbena::soft::interpose

using namespace verbena::soft::interpose;  // NOLINT: definitions below are global

VERBENA_EXPORT int rpoll(pollfd* descriptors, nfds_t count, int timeout_ms) {
  static const auto next = reinterpret_cast<Poll>(find_installed_if_any("rpoll", "RDMACM_1.0"));
  if (next == nullptr) {
    errno = ENOSYS;
    return -1;
  }
  // What is ready already is no matter for a timer.
  const int ready = next(descriptors, count, timeout_ms < 0 ? -1 : 0);
  if (ready != 0 || timeout_ms <= 0) return ready;
  int error = 0;
  int result = 0;
  {
    const Timer timer(timeout_ms);
    if (timer.fd() < 0) return next(descriptors, count, timeout_ms);
    result = poll_with_timer(next, descriptors, count, timer.fd());
    error = errno;
  }
  errno = error;
  return result;
}
