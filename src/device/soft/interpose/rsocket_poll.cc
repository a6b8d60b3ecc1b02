// rpoll() of librdmacm before release 63 loses count of its pollers whenever it ends by its
// time-out; one or two calls later it spins for ever in rs_poll_enter(). Programs that poll
// datagram rsockets, as udpong does, meet this with the first lost or late datagram. So here a
// time-out is a descriptor to be polled, and librdmacm is asked to wait without end.
#include <dlfcn.h>
#include <link.h>
#include <poll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <string_view>
#include <vector>

#include "src/device/soft/interpose/installed.h"

// As <rdma/rsocket.h> has it, which Verbena is built without.
extern "C" int rpoll(pollfd* descriptors, nfds_t count, int timeout_ms);

namespace verbena::soft::interpose {
namespace {

using Poll = decltype(&::rpoll);

// Where librdmacm was loaded from, under whatever name a package has its copy; empty if it was not.
std::string librdmacm_path() {
  const auto take_path = [](dl_phdr_info* info, size_t, void* found) -> int {
    const std::string_view path = info->dlpi_name;
    if (!path.substr(path.rfind('/') + 1).starts_with("librdmacm")) return 0;
    *static_cast<std::string*>(found) = path;
    return 1;
  };
  std::string path;
  dl_iterate_phdr(take_path, &path);
  return path;
}

// librdmacm's rpoll(); null where there is none. What a program opened for itself alone, or an
// extension of it links, is in no list that is searched for the next definition, though such a
// library's calls, and rselect() of librdmacm, come here.
Poll find_installed_rpoll() {
  constexpr const char* kName = "rpoll";
  constexpr const char* kVersion = "RDMACM_1.0";
  void* found = find_installed_if_any(kName, kVersion);
  if (found == nullptr) {
    const std::string path = librdmacm_path();
    // Never closed, so that the function stays.
    void* library = path.empty() ? nullptr : dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (library != nullptr) found = dlvsym(library, kName, kVersion);
  }
  return reinterpret_cast<Poll>(found);
}

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
  static const Poll next = find_installed_rpoll();
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
