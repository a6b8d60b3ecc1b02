// The threads of one node and the steps that they take together.
//
// The node's main thread begins a step and waits, without a core of its own, until all threads that
// take part have finished it or one has failed. Nothing here is used while messages move, except
// one flag that polling loops look at.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "src/base/file_descriptor.h"
#include "src/base/runtime.h"
#include "src/bench/run/coordination.h"
#include "verbena/status.h"

namespace verbena::bench {

enum class StepKind : uint8_t {
  kStart,    // nothing yet
  kListen,   // responding threads
  kConnect,  // all
  kPrepare,  // all; responding threads go on to answer
  kRun,      // requesting threads
  kEnd,      // responding threads
  kLeave,    // all end
};

struct Step {
  StepKind kind = StepKind::kStart;
  uint64_t number = 0;
  Phase phase{};          // kPrepare
  uint64_t begin_ns = 0;  // kRun: when it was begun, by now_ns()
};

class ThreadTeam {
 public:
  // kLimitExceeded if the process has no descriptor left.
  Status open();

  // --- the main thread ---

  // All threads see the step; `participants` of them will call finished().
  void begin(Step step, uint32_t participants);
  // Whether all participants finished. Then, and after a failure, descriptor() is readable once.
  bool settled();
  // The first failure of any thread in any step; ok if there was none.
  Status failure();
  int descriptor() const { return event_.get(); }
  void clear_event();

  // --- the threads ---

  // The step after the one with this number, or any later one.
  Step next(uint64_t number);
  // The same, or nothing new (the same number) after `timeout_ns`.
  Step next_within(uint64_t number, int64_t timeout_ns);
  // Waits for a step of this kind, from `step` on, which becomes that step; false: the point ends
  // before it.
  bool await(StepKind kind, Step& step);
  void finished();
  // The thread takes no further part, but waits for kLeave.
  void failed(Status why);
  // Where `status` is an error, failed() and the wait for kLeave.
  void end_with(const Status& status, Step& step);
  // Set from kEnd or kLeave on, cleared by kPrepare: polling loops end.
  const std::atomic<bool>& halt() const { return halt_; }
  bool halted() const { return halt_.load(std::memory_order_relaxed); }

 private:
  void wake();

  std::mutex mutex_;
  Condition begun_;
  Step step_;
  uint32_t outstanding_ = 0;
  Status failure_;
  std::atomic<bool> halt_{false};
  FileDescriptor event_;
};

}  // namespace verbena::bench
