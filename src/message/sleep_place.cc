#include "src/message/sleep_place.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "src/base/runtime.h"
#include "src/base/virtual_time.h"

namespace verbena::message {
namespace {

constexpr uint64_t kNsPerSecond = 1'000'000'000;
// How often a sleeper of a simulation looks whether it was woken by another thread.
constexpr uint64_t kSimulatedSliceNs = 100'000;

}  // namespace

Result<std::unique_ptr<SleepPlace>> SleepPlace::create(const Device& device) {
  VERBENA_ASSIGN_OR_RETURN(CompletionChannel channel, CompletionChannel::create(device));
  std::unique_ptr<SleepPlace> place(new SleepPlace(std::move(channel)));
  if (VirtualTime::current() == nullptr) VERBENA_RETURN_IF_ERROR(place->open());
  return place;
}

Status SleepPlace::open() {
  all_ = FileDescriptor(epoll_create1(EPOLL_CLOEXEC));
  news_ = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  timer_ = FileDescriptor(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  bool made = all_.valid() && news_.valid() && timer_.valid();
  for (const int descriptor : {news_.get(), timer_.get(), channel_.get()->fd}) {
    epoll_event readable{.events = EPOLLIN, .data = {}};
    made = made && epoll_ctl(all_.get(), EPOLL_CTL_ADD, descriptor, &readable) == 0;
  }
  if (made) return Status::ok_status();
  return Status(StatusCode::kLimitExceeded,
                fmt::format("a messenger that sleeps needs five descriptors, and the system has no "
                            "more: {}; raise the limit of open files (ulimit -n)",
                            std::strerror(errno)));
}

void SleepPlace::wake() {
  if (!news_.valid()) {
    woken_ = true;
    return;
  }
  const uint64_t one = 1;
  // Full is as good: it is readable.
  static_cast<void>(!write(news_.get(), &one, sizeof(one)));
}

void SleepPlace::begin() {
  woken_ = false;
  uint64_t count = 0;
  if (news_.valid()) static_cast<void>(!read(news_.get(), &count, sizeof(count)));
  while (channel_.wait(0).ok()) {
  }
}

void SleepPlace::set_limit(uint64_t max_sleep_ns) {
  if (!timer_.valid()) return;
  const uint64_t after_ns = std::max<uint64_t>(max_sleep_ns, 1);  // 0 would be never
  itimerspec when{};
  when.it_value.tv_sec = static_cast<time_t>(after_ns / kNsPerSecond);
  when.it_value.tv_nsec = static_cast<long>(after_ns % kNsPerSecond);
  timerfd_settime(timer_.get(), 0, &when, nullptr);  // which makes it unreadable
}

void SleepPlace::sleep_for(uint64_t sleep_ns) {
  if (!all_.valid()) {
    const uint64_t end_ns = now_ns() + sleep_ns;
    while (!woken_ && now_ns() < end_ns) {
      const uint64_t slice_ns = std::min(end_ns - now_ns(), kSimulatedSliceNs);
      if (channel_.wait(static_cast<int64_t>(slice_ns)).ok()) return;
    }
    return;
  }
  pollfd readable{.fd = all_.get(), .events = POLLIN, .revents = 0};
  const timespec most{static_cast<time_t>(sleep_ns / kNsPerSecond),
                      static_cast<long>(sleep_ns % kNsPerSecond)};
  ppoll(&readable, 1, &most, nullptr);
}

}  // namespace verbena::message
