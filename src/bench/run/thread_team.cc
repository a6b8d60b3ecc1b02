#include "src/bench/run/thread_team.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace verbena::bench {

Status ThreadTeam::open() {
  if (VirtualTime::current() != nullptr) return Status::ok_status();
  event_ = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (event_.valid()) return Status::ok_status();
  return Status(StatusCode::kLimitExceeded,
                fmt::format("cannot make an event descriptor: {}; raise the limit of open files "
                            "(ulimit -n)",
                            std::strerror(errno)));
}

void ThreadTeam::begin(Step step, uint32_t participants) {
  {
    const std::lock_guard lock(mutex_);
    step.number = step_.number + 1;
    step_ = step;
    outstanding_ = participants;
    if (step.kind == StepKind::kPrepare) halt_.store(false, std::memory_order_relaxed);
    if (step.kind == StepKind::kEnd || step.kind == StepKind::kLeave) {
      halt_.store(true, std::memory_order_relaxed);
    }
  }
  begun_.notify_all();
  if (VirtualTime* const time = VirtualTime::current()) time->wake_pollers();
}

bool ThreadTeam::settled() {
  const std::lock_guard lock(mutex_);
  return outstanding_ == 0;
}

Status ThreadTeam::failure() {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void ThreadTeam::clear_event() {
  uint64_t count = 0;
  static_cast<void>(!read(event_.get(), &count, sizeof(count)));
}

Step ThreadTeam::next(uint64_t number) {
  std::unique_lock lock(mutex_);
  begun_.wait(lock, [&] { return step_.number > number; });
  return step_;
}

Step ThreadTeam::next_within(uint64_t number, int64_t timeout_ns) {
  std::unique_lock lock(mutex_);
  begun_.wait_for(lock, static_cast<uint64_t>(timeout_ns), [&] { return step_.number > number; });
  return step_;
}

void ThreadTeam::finished() {
  {
    const std::lock_guard lock(mutex_);
    if (--outstanding_ > 0) return;
  }
  wake();
}

void ThreadTeam::failed(Status why) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_.ok()) failure_ = std::move(why);
  }
  wake();
}

bool ThreadTeam::await(StepKind kind, Step& step) {
  while (step.kind != kind && step.kind != StepKind::kLeave) step = next(step.number);
  return step.kind == kind;
}

void ThreadTeam::end_with(const Status& status, Step& step) {
  if (status.ok()) return;
  failed(status);
  await(StepKind::kLeave, step);
}

void ThreadTeam::wake() {
  if (VirtualTime* const time = VirtualTime::current()) return time->wake_all_at(&event_);
  const uint64_t one = 1;
  static_cast<void>(!write(event_.get(), &one, sizeof(one)));
}

}  // namespace verbena::bench
