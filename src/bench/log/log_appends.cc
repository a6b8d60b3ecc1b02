#include "src/bench/log/log_appends.h"

#include <string_view>

#include "src/base/runtime.h"

namespace verbena::bench {

namespace {

// A writer makes room when that part of the log was appended by all.
constexpr uint64_t kParts = 8;

}  // namespace

LogAppends::LogAppends(NodeJob& job, uint32_t number, const SocketDevice& device,
                       std::optional<LogTail>& tail)
    : job_(job),
      number_(number),
      device_(device),
      settings_(log_settings(job.setup.point)),
      tail_(tail),
      dropped_bytes_(tail ? settings_.capacity_bytes / kParts / log_writers(job.setup.point)
                          : UINT64_MAX) {}

Status LogAppends::open(std::span<ControlConnection* const> replicas) {
  const uint32_t pending = job_.setup.point.pending;
  const uint32_t batch_bytes = settings_.batch * settings_.entry_bytes;
  VERBENA_ASSIGN_OR_RETURN(writer_, open_log_writer(*device_.device, *device_.domain, replicas,
                                                    {.pending = pending,
                                                     .max_batch = settings_.batch,
                                                     .max_batch_bytes = batch_bytes,
                                                     .method = settings_.method,
                                                     .handshake_timeout_ns = kSetupTimeoutNs}));
  VERBENA_ASSIGN_OR_RETURN(memory_,
                           RegisteredArena::create(*device_.domain, uint64_t{pending} * batch_bytes,
                                                   IBV_ACCESS_LOCAL_WRITE));
  first_.resize(pending);
  again_.reserve(pending);
  posting_.reserve(pending);
  for (uint64_t i = 0; i < uint64_t{pending} * settings_.batch; ++i) {
    slices_.push_back({.memory = &memory_->region(),
                       .offset_bytes = i * settings_.entry_bytes,
                       .size_bytes = settings_.entry_bytes});
    fill_entry({memory_->data() + i * settings_.entry_bytes, settings_.entry_bytes}, {});
  }
  return Status::ok_status();
}

void LogAppends::begin(const Phase& phase, bool verify) {
  phase_ = static_cast<uint32_t>(phase.number);
  verify_ = verify;
  next_number_ = 0;
  acknowledged_ = {};
  batches_ = skipped_ = full_waits_ = 0;
  if (!tail_) return;
  tail_->begin(phase, verify);
  if (!reads()) return;
  const Status rewound = tail_->rewind();
  if (!rewound.ok()) fail(rewound);
}

PostResult LogAppends::try_post(uint32_t slot, uint32_t /*bytes*/) {
  if (!status_.ok()) [[unlikely]]
    return PostResult::kFailed;
  // Now, since the order of posts is that of the log.
  first_[slot] = next_number_;
  EntryStamp stamp{.writer = number_, .phase = phase_, .number = next_number_};
  char* entry = memory_->data() + uint64_t{slot} * settings_.batch * settings_.entry_bytes;
  for (uint32_t i = 0; i < settings_.batch; ++i, ++stamp.number, entry += settings_.entry_bytes) {
    if (verify_) {
      fill_entry({entry, settings_.entry_bytes}, stamp);
    } else {
      std::memcpy(entry, &stamp, sizeof(stamp));
    }
  }
  const PostResult result = writer_->post_append(
      std::span(slices_).subspan(uint64_t{slot} * settings_.batch, settings_.batch), slot);
  if (result == PostResult::kPosted) [[likely]] {
    next_number_ += settings_.batch;
    return result;
  }
  if (result == PostResult::kFailed) {
    if (!writer_->status().ok() || writer_->error().code() != StatusCode::kLimitExceeded) {
      fail(writer_->error());
      return result;
    }
    ++full_waits_;
    make_room();
  }
  return status_.ok() ? PostResult::kWouldBlock : PostResult::kFailed;
}

bool LogAppends::appended(uint32_t slot, const LogCompletion& done) {
  if (done.outcome != LogOutcome::kAppended) [[unlikely]] {
    ++(done.outcome == LogOutcome::kSkipped ? skipped_ : full_waits_);
    again_.push_back(slot);
    return false;
  }
  ++batches_;
  unread_bytes_ += settings_.batch * settings_.entry_bytes;
  if (verify_) {
    for (uint32_t i = 0; i < done.records; ++i) acknowledged_.add(done.first + i, first_[slot] + i);
  }
  return true;
}

void LogAppends::post_again() {
  posting_.swap(again_);
  for (const uint32_t slot : posting_) {
    if (try_post(slot, 0) == PostResult::kWouldBlock) again_.push_back(slot);
  }
  posting_.clear();
}

void LogAppends::make_room() {
  unread_bytes_ = 0;
  if (!tail_ || (verify_ && !reads())) return;
  const Status made = reads() ? tail_->read_all() : tail_->drop();
  if (!made.ok()) fail(made);
}

Status LogAppends::end(Report& report) {
  Waiter waiter;
  while ((writer_->outstanding() > 0 || !again_.empty()) && status_.ok() && !job_.team.halted()) {
    poll([](uint32_t, std::span<const char>) {}) > 0 ? waiter.progress() : waiter.idle();
  }
  append_last();
  // Others still append, and need room.
  while (tail_ && reads() && !tail_->is_over() && status_.ok() && !job_.team.halted()) {
    const Status read = tail_->read_all();
    if (!read.ok()) fail(read);
    waiter.idle();
  }
  report.counters[kAppendedBatches] = batches_;
  report.counters[kAppendedEntries] = batches_ * settings_.batch;
  report.counters[kSkippedBatches] = skipped_;
  report.counters[kFullWaits] = full_waits_;
  if (tail_ && reads()) tail_->end(report);
  return status_;
}

void LogAppends::append_last() {
  const LastEntry last{.stamp = {.writer = number_, .phase = phase_ | kLastEntry},
                       .acknowledged = acknowledged_};
  const std::string_view entry(reinterpret_cast<const char*>(&last), sizeof(last));
  Waiter waiter;
  while (status_.ok() && !job_.team.halted()) {
    const Result<LogPosition> position = writer_->append(entry);
    if (position.ok()) return;
    if (!writer_->status().ok() || (position.status().code() != StatusCode::kLimitExceeded &&
                                    position.status().code() != StatusCode::kTimeout)) {
      return fail(position.status());
    }
    make_room();
    waiter.idle();
  }
}

}  // namespace verbena::bench
