// How many instructions the calling thread executed in user space: the CPU cost of a message that
// does not depend on clock rates, caches or neighbours.
//
// Counted by the processor through perf_event_open. Many virtual machines and containers do not
// offer that; then fall back to cycles (tsc.h) and say so in the result:
//
//   auto counter = InstructionCounter::open();
//   if (counter.ok()) { const uint64_t start = counter->read(); ... counter->read() - start ... }
#pragma once

#include <cstdint>
#include <utility>

#include "src/base/file_descriptor.h"
#include "verbena/status.h"

namespace verbena {

class InstructionCounter {
 public:
  // Whether this machine counts instructions for this process; tried once.
  static bool available();

  // Starts counting the calling thread's instructions. kUnsupported where the machine does not
  // count them, kPermissionDenied where the system does not let this user
  // (kernel.perf_event_paranoid); never a wrong count.
  static Result<InstructionCounter> open();

  // Instructions since open(). A system call: at the ends of a measured stretch, not within.
  uint64_t read() const;

 private:
  explicit InstructionCounter(FileDescriptor event) : event_(std::move(event)) {}
  FileDescriptor event_;
};

}  // namespace verbena
