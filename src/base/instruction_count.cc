#include "src/base/instruction_count.h"

#include <fmt/format.h>
#include <linux/perf_event.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace verbena {

namespace {

// What read() yields for the format asked for below.
struct Reading {
  uint64_t count;
  uint64_t enabled_ns;
  uint64_t running_ns;
};

bool read_event(int event, Reading* reading) {
  ssize_t got;
  do {
    got = ::read(event, reading, sizeof(*reading));
  } while (got < 0 && errno == EINTR);
  return got == static_cast<ssize_t>(sizeof(*reading));
}

Result<FileDescriptor> open_event() {
  perf_event_attr attributes{};
  attributes.type = PERF_TYPE_HARDWARE;
  attributes.size = sizeof(attributes);
  attributes.config = PERF_COUNT_HW_INSTRUCTIONS;
  attributes.exclude_kernel = 1;
  attributes.exclude_hv = 1;
  attributes.read_format = PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING;
  const long event = syscall(SYS_perf_event_open, &attributes, 0, -1, -1,
                             static_cast<unsigned long>(PERF_FLAG_FD_CLOEXEC));
  if (event >= 0) return FileDescriptor(static_cast<int>(event));
  const int error = errno;
  if (error == EACCES || error == EPERM) {
    return Status(StatusCode::kPermissionDenied,
                  fmt::format("the system does not let this user count instructions: {}; set "
                              "kernel.perf_event_paranoid to 2 or lower, or allow "
                              "perf_event_open in the container",
                              std::strerror(error)));
  }
  return Status(StatusCode::kUnsupported,
                fmt::format("this machine does not count instructions: {}; use cycles",
                            std::strerror(error)));
}

// Some virtual machines accept the event and then count nothing.
bool counts(int event) {
  Reading before{};
  Reading after{};
  if (!read_event(event, &before)) return false;
  for (int i = 0; i < 1000; ++i) asm volatile("" ::: "memory");
  if (!read_event(event, &after)) return false;
  return after.count - before.count >= 1000 && after.running_ns > 0;
}

}  // namespace

bool InstructionCounter::available() {
  static const bool counted = open().ok();
  return counted;
}

Result<InstructionCounter> InstructionCounter::open() {
  VERBENA_ASSIGN_OR_RETURN(FileDescriptor event, open_event());
  if (!counts(event.get())) {
    return Status(StatusCode::kUnsupported,
                  "this machine offers a counter of instructions that does not count, as virtual "
                  "machines may; use cycles");
  }
  return InstructionCounter(std::move(event));
}

uint64_t InstructionCounter::read() const {
  Reading reading{};
  if (!read_event(event_.get(), &reading)) return 0;
  if (reading.running_ns == 0 || reading.running_ns >= reading.enabled_ns) return reading.count;
  // The counter was shared with others for a part of the time.
  return static_cast<uint64_t>(static_cast<double>(reading.count) *
                               static_cast<double>(reading.enabled_ns) /
                               static_cast<double>(reading.running_ns));
}

}  // namespace verbena
