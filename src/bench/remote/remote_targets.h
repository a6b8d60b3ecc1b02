// What the closed loop (closed_loop.h) drives in the place of a requester, for an operation on
// remote memory `Op`. The phases of a thread begin and end here, so that an operation counts, and
// checks with --verify, from its own begin on.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/base/assert.h"
#include "src/base/runtime.h"
#include "src/bench/run/coordination.h"
#include "src/bench/run/request_phases.h"
#include "verbena/rpc.h"
#include "verbena/status.h"

namespace verbena::bench {

// Operations that one poll carries out from begin to end; several that are pending wait for each
// other. A step() that waits for another thread returns now and then, to go on at the next poll.
enum class StepResult : uint8_t { kDone, kGoesOn, kFailed };

template <typename Op>
class OneAtATime {
 public:
  OneAtATime(Op& op, uint32_t pending) : op_(op), slots_(pending) {}

  void begin(bool verify) {
    first_ = count_ = 0;
    op_.begin(verify);
  }
  void end(Report& report) { op_.end(report); }

  PostResult try_post(uint32_t slot, uint32_t /*bytes*/) {
    if (!op_.status().ok()) [[unlikely]]
      return PostResult::kFailed;
    VERBENA_DEBUG_ASSERT(count_ < slots_.size());
    slots_[(first_ + count_++) % slots_.size()] = slot;
    return PostResult::kPosted;
  }
  template <typename Take>
  uint32_t poll(Take&& take) {
    if (count_ == 0 || op_.step() != StepResult::kDone) return 0;
    const uint32_t slot = slots_[first_];
    first_ = (first_ + 1) % static_cast<uint32_t>(slots_.size());
    --count_;
    take(slot, std::span<const char>());
    return 1;
  }

  char* request_buffer(uint32_t /*slot*/) { return nullptr; }
  bool wait(int64_t /*timeout_ns*/) { return false; }
  const Status& status() const { return op_.status(); }
  MarkLayout mark_layout() const { return MarkLayout::kLastBit; }

 private:
  Op& op_;
  std::vector<uint32_t> slots_;  // a ring
  uint32_t first_ = 0;
  uint32_t count_ = 0;
};

// Operations that are posted, several at once, and polled.
template <typename Op>
class Posted {
 public:
  explicit Posted(Op& op) : op_(op) {}

  void begin(bool verify) { op_.begin(verify); }
  // What a simulated phase gave up goes first: the next one finds nothing of it.
  void end(Report& report) {
    Waiter waiter;
    while (op_.outstanding() > 0 && op_.status().ok()) {
      op_.poll([](uint32_t) {}) > 0 ? waiter.progress() : waiter.idle();
    }
    op_.end(report);
  }

  PostResult try_post(uint32_t slot, uint32_t /*bytes*/) { return op_.post(slot); }
  template <typename Take>
  uint32_t poll(Take&& take) {
    return op_.poll([&take](uint32_t slot) { take(slot, std::span<const char>()); });
  }

  char* request_buffer(uint32_t /*slot*/) { return nullptr; }
  bool wait(int64_t /*timeout_ns*/) { return false; }
  const Status& status() const { return op_.status(); }
  MarkLayout mark_layout() const { return MarkLayout::kLastBit; }

 private:
  Op& op_;
};

// RequestPhases' works: none touches a payload, but each phase begins and ends.
template <typename Target>
class TargetPhases {
 public:
  explicit TargetPhases(Target& target) : target_(&target) {}

  std::vector<NoPayload> make(const Phase& phase) const {
    target_->begin(phase.verify);
    return std::vector<NoPayload>(1);
  }
  Status ended(Report& report) const {
    target_->end(report);
    return target_->status();
  }

 private:
  Target* target_;
};

}  // namespace verbena::bench
