// Takes numbers from the sequencer that all threads share ("memsem" III-E, figure 10b).
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "src/bench/remote/remote_targets.h"
#include "src/bench/remote/remote_thread.h"
#include "src/bench/run/coordination.h"
#include "verbena/apps/lock_service.h"
#include "verbena/remote.h"
#include "verbena/remote_sequencer.h"
#include "verbena/rpc.h"
#include "verbena/status.h"

namespace verbena::bench {

// What the versions have in common: counts, and with `verify` notes of all numbers, so that one
// which is given twice is found by who gets it last.
class SequencerOperation {
 public:
  void begin(bool verify) {
    verify_ = verify;
    taken_ = mismatches_ = 0;
  }
  void end(Report& report) const;
  const Status& status() const { return status_; }

 protected:
  explicit SequencerOperation(const RemoteThread& thread)
      : thread_(thread), range_(thread.settings().range) {}

  void take(uint64_t number) {
    ++taken_;
    if (verify_) [[unlikely]]
      check(number);
  }
  void fail(const Status& status) {
    if (status_.ok()) status_ = status;
  }

  const RemoteThread& thread_;
  const uint32_t range_;

 private:
  void check(uint64_t number);
  // False: somebody has it already. Who comes after 65,536 others finds no trace any more.
  Result<bool> claim(uint64_t number) const;

  bool verify_ = false;
  uint64_t taken_ = 0;
  uint64_t mismatches_ = 0;
  Status status_;
};

class LocalSequencerOperation : public SequencerOperation {
 public:
  explicit LocalSequencerOperation(const RemoteThread& thread) : SequencerOperation(thread) {}

  StepResult step() {
    LocalSequencer sequencer(*reinterpret_cast<uint64_t*>(thread_.local() + kWordOffset));
    take(sequencer.next(range_));
    let_others_run();
    return status().ok() ? StepResult::kDone : StepResult::kFailed;
  }
};

// What was taken in a poll: checks and new posts come after it.
struct TakenNumber {
  uint32_t slot;
  uint64_t number;
};

class RemoteSequencerOperation : public SequencerOperation {
 public:
  explicit RemoteSequencerOperation(const RemoteThread& thread)
      : SequencerOperation(thread), sequencer_(*thread.region, {kWordOffset}) {
    found_.reserve(thread.point().pending);
  }

  PostResult post(uint32_t slot) { return sequencer_.post_next(slot, range_); }
  template <typename Take>
  uint32_t poll(Take&& done) {
    found_.clear();
    thread_.region->poll([this](const RemoteCompletion& one) {
      found_.push_back({static_cast<uint32_t>(one.token), one.value<uint64_t>()});
    });
    if (found_.empty() && !thread_.region->status().ok()) fail(thread_.region->status());
    for (const TakenNumber& one : found_) {
      take(one.number);
      done(one.slot);
    }
    return static_cast<uint32_t>(found_.size());
  }
  uint32_t outstanding() const { return thread_.region->outstanding(); }

 private:
  RemoteSequencer sequencer_;
  std::vector<TakenNumber> found_;
};

class RpcSequencerOperation : public SequencerOperation {
 public:
  explicit RpcSequencerOperation(const RemoteThread& thread)
      : SequencerOperation(thread), sequencer_(*thread.client, 0) {}

  PostResult post(uint32_t slot) { return sequencer_.post_next(slot, range_); }
  template <typename Take>
  uint32_t poll(Take&& done) {
    const uint32_t found = thread_.client->poll([&](const LockCompletion& one) {
      if (!one.status.ok()) [[unlikely]]
        return fail(one.status);
      take(one.number);
      done(static_cast<uint32_t>(one.token));
    });
    if (found == 0 && !thread_.client->status().ok()) fail(thread_.client->status());
    return found;
  }
  uint32_t outstanding() const { return thread_.client->outstanding(); }

 private:
  RpcSequencer sequencer_;
};

}  // namespace verbena::bench
