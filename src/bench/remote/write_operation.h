// Writes small values into remote memory, each by itself or consolidated ("memsem" III-C).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "src/base/assert.h"
#include "src/bench/remote/remote_targets.h"
#include "src/bench/remote/remote_thread.h"
#include "src/bench/remote/written_places.h"
#include "src/bench/run/coordination.h"
#include "verbena/remote.h"
#include "verbena/remote_consolidation.h"
#include "verbena/rpc.h"
#include "verbena/status.h"

namespace verbena::bench {

// The thread's part of the region: what is written where, and with `verify`, what was written last.
class WrittenPart {
 public:
  explicit WrittenPart(const RemoteThread& thread);

  void begin(bool verify);
  struct Write {
    uint64_t offset_bytes;
    std::span<const char> bytes;
  };
  Write next() {
    const uint64_t place = places_.next();
    if (!numbers_.empty()) [[unlikely]]
      fill(place);
    return {offset_of(place), value_};
  }
  // Places whose bytes in the region are others than those that were written last.
  // `read` fills a span from an offset of the region.
  Result<uint64_t> mismatches(
      const std::function<Status(uint64_t offset_bytes, std::span<char> into)>& read) const;

 private:
  void fill(uint64_t place);
  // On several sockets, whose parts lie one behind the other, places lie in turn.
  uint64_t offset_of(uint64_t place) const {
    if (sockets_ == 1) return offset_bytes_ + place * size_bytes_;
    return place % sockets_ * socket_bytes_ + offset_bytes_ + place / sockets_ * size_bytes_;
  }

  const uint32_t sockets_;
  const uint64_t socket_bytes_;
  const uint64_t offset_bytes_;
  const uint32_t size_bytes_;
  const uint64_t key_;
  const uint32_t thread_;
  const uint64_t count_;
  WrittenPlaces places_;
  std::vector<char> value_;
  std::vector<uint32_t> numbers_;  // of the last write to each place; 0: none in this phase
};

// What both ways have in common.
class WriteOperation {
 public:
  const Status& status() const { return status_; }

 protected:
  explicit WriteOperation(const RemoteThread& thread) : region_(*thread.region), part_(thread) {}

  void begin_writes(bool verify);
  // All is in the region.
  void end_writes(Report& report);
  void fail(const Status& status) {
    if (status_.ok()) status_ = status;
  }
  uint64_t round_trips() const { return region_.statistics().writes + region_.statistics().reads; }

  verbena::RemoteRegion& region_;
  WrittenPart part_;
  uint64_t written_ = 0;

 private:
  bool verify_ = false;
  uint64_t round_trips_before_ = 0;
  Status status_;
};

class NativeWrites : public WriteOperation {
 public:
  explicit NativeWrites(const RemoteThread& thread) : WriteOperation(thread) {}

  void begin(bool verify) { begin_writes(verify); }
  void end(Report& report) { end_writes(report); }

  PostResult post(uint32_t slot) {
    const WrittenPart::Write write = part_.next();
    ++written_;
    const PostResult result = region_.post_write(write.offset_bytes, write.bytes, slot);
    VERBENA_DEBUG_ASSERT(result != PostResult::kWouldBlock);  // there are no more slots than room
    return result;
  }
  template <typename Take>
  uint32_t poll(Take&& done) {
    const uint32_t found = region_.poll(
        [&done](const RemoteCompletion& one) { done(static_cast<uint32_t>(one.token)); });
    if (found == 0 && !region_.status().ok()) fail(region_.status());
    return found;
  }
  uint32_t outstanding() const { return region_.outstanding(); }
};

class ConsolidatedWrites : public WriteOperation {
 public:
  ConsolidatedWrites(const RemoteThread& thread, std::unique_ptr<ConsolidatedRegion> consolidated)
      : WriteOperation(thread), consolidated_(std::move(consolidated)) {}

  void begin(bool verify) { begin_writes(verify); }
  void end(Report& report) {
    const Status flushed = consolidated_->flush();
    if (!flushed.ok()) fail(flushed);
    end_writes(report);
  }

  // The write, and what its program owes: a poll.
  StepResult step() {
    const WrittenPart::Write write = part_.next();
    ++written_;
    Status done = consolidated_->write(write.offset_bytes, write.bytes);
    if (done.ok()) done = consolidated_->poll();
    if (done.ok()) [[likely]]
      return StepResult::kDone;
    fail(done);
    return StepResult::kFailed;
  }

 private:
  std::unique_ptr<ConsolidatedRegion> consolidated_;
};

}  // namespace verbena::bench
