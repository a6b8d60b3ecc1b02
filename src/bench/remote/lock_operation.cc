#include "src/bench/remote/lock_operation.h"

#include "src/bench/remote/remote_settings.h"
#include "verbena/apps/lock_service.h"

namespace verbena::bench {

namespace {

std::unique_ptr<Spinlock> make_lock(const RemoteThread& thread) {
  SpinlockOptions options{.lease_ns = kBenchLeaseNs};
  if (thread.settings().backoff == Backoff::kOff) {
    options.backoff_least_ns = options.backoff_most_ns = 0;
  }
  switch (thread.settings().version) {
    case WordVersion::kLocal:
      return std::make_unique<LocalSpinlock>(
          *reinterpret_cast<uint64_t*>(thread.local() + kWordOffset), options);
    case WordVersion::kRemote:
      return std::make_unique<RemoteSpinlock>(*thread.region, RemotePointer<uint64_t>{kWordOffset},
                                              options);
    case WordVersion::kRpc:
      break;
  }
  return std::make_unique<RpcSpinlock>(
      *thread.client, 0,
      RpcBackoff{.least_ns = options.backoff_least_ns, .most_ns = options.backoff_most_ns});
}

}  // namespace

void LockOperation::begin(bool verify) {
  if (lock_ == nullptr) lock_ = make_lock(thread_);
  before_ = lock_->statistics();
  verify_ = verify;
  mismatches_ = 0;
}

void LockOperation::end(Report& report) const {
  const SpinlockStatistics& now = lock_->statistics();
  const uint64_t attempts = now.attempts - before_.attempts;
  const uint64_t acquisitions = now.acquisitions - before_.acquisitions;
  report.mismatches += mismatches_;
  report.counters[kCountedOperations] = acquisitions;
  if (thread_.settings().version != WordVersion::kLocal) {
    report.counters[kRoundTrips] = attempts + acquisitions;  // each is given back
  }
  report.counters[kAcquisitions] = acquisitions;
  report.counters[kAttempts] = attempts;
}

StepResult LockOperation::step() {
  const Status locked = lock_->lock(kStepNs);
  if (locked.code() == StatusCode::kTimeout) return StepResult::kGoesOn;
  if (!locked.ok()) return failed(locked);
  let_others_run();
  if (verify_) {
    const Result<bool> alone = is_alone();
    if (!alone.ok()) return failed(alone.status());
    if (!*alone) ++mismatches_;
  }
  const Status unlocked = lock_->unlock();
  if (!unlocked.ok()) return failed(unlocked);
  let_others_run();
  return StepResult::kDone;
}

Result<bool> LockOperation::is_alone() const {
  const SharedWords words(thread_);
  VERBENA_ASSIGN_OR_RETURN(const uint64_t earlier, words.load(kGuardedOffset));
  VERBENA_RETURN_IF_ERROR(words.store(kGuardedOffset, lock_->token()));
  let_others_run();
  VERBENA_ASSIGN_OR_RETURN(const uint64_t mine, words.load(kGuardedOffset));
  return earlier < lock_->token() && mine == lock_->token();
}

StepResult LockOperation::failed(const Status& status) {
  status_ = status;
  return StepResult::kFailed;
}

}  // namespace verbena::bench
