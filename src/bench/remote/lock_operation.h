// Takes the lock that all threads share and gives it back at once ("memsem" III-E, figure 10a).
#pragma once

#include <cstdint>
#include <memory>

#include "src/bench/remote/remote_targets.h"
#include "src/bench/remote/remote_thread.h"
#include "src/bench/run/coordination.h"
#include "verbena/remote_lock.h"
#include "verbena/status.h"

namespace verbena::bench {

class LockOperation {
 public:
  explicit LockOperation(const RemoteThread& thread) : thread_(thread) {}

  // With `verify`, each holder writes its token where the lock guards it, and finds no later one,
  // nor another one when it looks again.
  void begin(bool verify);
  void end(Report& report) const;

  StepResult step();
  const Status& status() const { return status_; }

 private:
  // How long a step waits for the lock.
  static constexpr int64_t kStepNs = 100'000;

  Result<bool> is_alone() const;
  StepResult failed(const Status& status);

  const RemoteThread& thread_;
  std::unique_ptr<Spinlock> lock_;
  SpinlockStatistics before_;  // this phase
  bool verify_ = false;
  uint64_t mismatches_ = 0;
  Status status_;
};

}  // namespace verbena::bench
