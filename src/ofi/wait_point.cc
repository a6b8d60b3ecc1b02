#include "src/ofi/wait_point.h"

#include <poll.h>
#include <rdma/fi_errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

#include "src/base/runtime.h"
#include "src/ofi/endpoint.h"

namespace verbena::ofi {
namespace {

// What comes so soon is not worth a sleep, which costs its sender a system call.
constexpr uint64_t kPollBeforeSleepNs = 30'000;
// Of endpoints whose messengers raise no events.
constexpr uint64_t kNapNs = 200'000;
constexpr uint64_t kNsPerSecond = 1'000'000'000;

void sleep_at(int descriptor, uint64_t most_ns) {
  pollfd readable{.fd = descriptor, .events = POLLIN, .revents = 0};
  const timespec most{static_cast<time_t>(most_ns / kNsPerSecond),
                      static_cast<long>(most_ns % kNsPerSecond)};
  ppoll(&readable, 1, most_ns == UINT64_MAX ? nullptr : &most, nullptr);
}

}  // namespace

int WaitPoint::descriptor() {
  if (all_.valid()) return all_.get();
  FileDescriptor all(epoll_create1(EPOLL_CLOEXEC));
  own_ = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_event readable{.events = EPOLLIN, .data = {}};
  if (!all.valid() || !own_.valid() ||
      epoll_ctl(all.get(), EPOLL_CTL_ADD, own_.get(), &readable) != 0) {
    const int error = errno;
    own_.reset();
    return report("waiting",
                  Status(StatusCode::kLimitExceeded,
                         std::string("the system gives no descriptor to wait at: ") +
                             strerror(error) + "; raise the limit of open files (ulimit -n)"));
  }
  all_ = std::move(all);
  return all_.get();
}

WaitPoint::~WaitPoint() {
  const std::lock_guard guard(domain_.lock);
  std::erase(domain_.asleep, this);
}

void WaitPoint::wake() {
  watched_ = false;
  waking_ = sleepers_ > 0;
  const uint64_t one = 1;
  static_cast<void>(!::write(own_.get(), &one, sizeof(one)));
}

// This thread may have taken events that others sleep for: they look for themselves.
void WaitPoint::wake_all() {
  for (WaitPoint* const point : domain_.asleep) point->wake();
}

void WaitPoint::forget_wakes() {
  uint64_t count = 0;
  static_cast<void>(!::read(own_.get(), &count, sizeof(count)));
}

void WaitPoint::fall_asleep() {
  if (std::ranges::find(domain_.asleep, this) == domain_.asleep.end())
    domain_.asleep.push_back(this);
}

void WaitPoint::get_up() {
  if (sleepers_ == 0 && !watched_) std::erase(domain_.asleep, this);
}

void WaitPoint::signal() {
  const std::lock_guard guard(domain_.lock);
  signalled_ = true;
  if (own_.valid()) wake();
}

WaitPoint::Rest WaitPoint::how_to_rest(const std::vector<Endpoint*>& endpoints) {
  if (descriptor() < 0) return Rest::kNap;
  // A sleeper that has not been on the CPU since the last one would find nothing, and sleep on.
  if (waking_) return Rest::kPoll;
  forget_wakes();
  for (const Endpoint* endpoint : endpoints) {
    const int its = endpoint->messenger->event_descriptor();
    if (its < 0) return Rest::kNap;
    epoll_event readable{.events = EPOLLIN, .data = {}};
    if (epoll_ctl(all_.get(), EPOLL_CTL_ADD, its, &readable) != 0 && errno != EEXIST)
      return Rest::kNap;
  }
  for (const Endpoint* endpoint : endpoints) {
    if (!endpoint->messenger->prepare_to_sleep()) return Rest::kPoll;
  }
  return Rest::kSleep;
}

bool WaitPoint::prepare(const Sources& sources, const std::function<bool()>& ready) {
  const std::lock_guard guard(domain_.lock);
  const std::vector<Endpoint*>& endpoints = sources();
  get_up();
  for (Endpoint* endpoint : endpoints) endpoint->take_completions();
  if (!ready() && !signalled_ && how_to_rest(endpoints) == Rest::kSleep) {
    watched_ = true;
    fall_asleep();
    return true;
  }
  signalled_ = false;
  wake_all();
  return false;
}

void WaitPoint::wait(const Sources& sources, int timeout_ms, const std::function<bool()>& ready) {
  const uint64_t start_ns = now_ns();
  const uint64_t limit_ns =
      timeout_ms < 0 ? UINT64_MAX : static_cast<uint64_t>(timeout_ms) * kNsPerMs;
  Waiter waiter;
  for (;;) {
    Rest rest = Rest::kPoll;
    uint64_t left_ns = UINT64_MAX;
    {
      const std::lock_guard guard(domain_.lock);
      get_up();
      const std::vector<Endpoint*>& endpoints = sources();
      for (Endpoint* endpoint : endpoints) endpoint->take_completions();
      const uint64_t gone_ns = now_ns() - start_ns;
      if (ready() || std::exchange(signalled_, false) || gone_ns >= limit_ns) {
        wake_all();
        return;
      }
      if (limit_ns != UINT64_MAX) left_ns = limit_ns - gone_ns;
      if (gone_ns >= kPollBeforeSleepNs) rest = how_to_rest(endpoints);
      if (rest == Rest::kSleep) {
        ++sleepers_;
        fall_asleep();
      }
    }
    if (rest == Rest::kPoll) {
      waiter.idle();
    } else if (rest == Rest::kNap) {
      sleep_ns(std::min(left_ns, kNapNs));
    } else {
      sleep_at(all_.get(), left_ns);
      const std::lock_guard guard(domain_.lock);
      if (--sleepers_ == 0) waking_ = false;
    }
  }
}

int get_descriptor(WaitPoint& point, void* into) {
  const int descriptor = point.descriptor();
  if (descriptor < 0) return descriptor;
  *static_cast<int*>(into) = descriptor;
  return 0;
}

}  // namespace verbena::ofi
