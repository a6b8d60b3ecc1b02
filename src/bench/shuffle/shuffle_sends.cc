#include "src/bench/shuffle/shuffle_sends.h"

#include <algorithm>
#include <string_view>

#include "src/base/runtime.h"
#include "src/bench/load/poll_cost.h"
#include "src/bench/load/zipf_ranks.h"
#include "src/bench/run/shuffle_connections.h"
#include "src/bench/run/stream_seed.h"
#include "verbena/data_path.h"
#include "verbena/remote.h"

namespace verbena::bench {

namespace {

// Of which the records' keys are drawn.
constexpr uint64_t kKeys = 1'000'000;
constexpr uint32_t kUsualBatchBytes = 64 * 1024;

}  // namespace

ShuffleSends::ShuffleSends(NodeJob& job, uint32_t number)
    : job_(job),
      number_(number),
      settings_(shuffle_settings(job.setup.point)),
      receivers_(shuffle_receivers(job.setup.point)),
      ring_records_(shuffle_ring_records(job.setup.point)),
      sums_(receivers_) {}

Status ShuffleSends::open() {
  VERBENA_ASSIGN_OR_RETURN(
      memory_, RegisteredArena::create(job_.domain, ring_records_ * settings_.record_bytes,
                                       IBV_ACCESS_LOCAL_WRITE));
  Random random(stream_seed(job_.setup.seed, number_));
  const ZipfRanks ranks(kKeys);
  for (uint64_t i = 0; i < ring_records_; ++i) {
    const uint64_t key =
        settings_.keys == RecordKeys::kUniform ? random.next() : ranks.draw(random);
    fill_record({memory_->data() + i * settings_.record_bytes, settings_.record_bytes},
                {.key = key, .sender = number_});
  }
  return Status::ok_status();
}

Status ShuffleSends::prepare(const Phase& /*phase*/) {
  sender_.reset();
  VERBENA_ASSIGN_OR_RETURN(std::vector<ControlConnection> controls, reach_receivers(job_));
  VERBENA_ASSIGN_OR_RETURN(
      sender_, open_shuffle_sender(job_.device, job_.domain, std::move(controls),
                                   {.sender = number_,
                                    .method = settings_.method,
                                    .batch = settings_.batch,
                                    .batch_bytes = std::max(
                                        kUsualBatchBytes, settings_.batch * settings_.record_bytes),
                                    .pending = settings_.writes,
                                    .threads = job_.setup.point.threads,
                                    .handshake_timeout_ns = kSetupTimeoutNs}));
  return Status::ok_status();
}

void ShuffleSends::begin(const Phase& phase, bool verify) {
  phase_ = static_cast<uint32_t>(phase.number);
  phase_kind_ = phase.kind;
  verify_ = verify;
  drawn_ = false;
  left_ = 0;
  next_number_ = completed_ = flushed_at_ = cycles_ = 0;
  std::ranges::fill(sums_, RecordSum{});
}

bool ShuffleSends::has_memory() {
  if (next_number_ - completed_ < ring_records_) [[likely]]
    return true;
  completed_ = sender_->completed();
  if (next_number_ - completed_ < ring_records_) return true;
  sender_->poll();
  completed_ = sender_->completed();
  if (next_number_ - completed_ < ring_records_) return true;
  // The oldest records may wait for a batch that few keys fill.
  if (next_number_ >= flushed_at_ + ring_records_) {
    flushed_at_ = next_number_;
    sender_->flush();
  }
  return false;
}

bool ShuffleSends::send_record() {
  if (!has_memory()) return false;
  const uint64_t offset_bytes = next_number_ % ring_records_ * settings_.record_bytes;
  char* const record = memory_->data() + offset_bytes;
  if (!drawn_) {
    // Looking at a record takes time in a simulation, too, as a look at a word does.
    const uint64_t key = poll_word(reinterpret_cast<const uint64_t*>(record));
    partition_ = partition_of(record_key_hash(key), receivers_);
    drawn_ = true;
    if (verify_) {
      fill_record({record, settings_.record_bytes},
                  {.key = key, .sender = number_, .phase = phase_, .number = next_number_});
    }
  }
  const PostResult result = sender_->send(
      partition_, LocalSlice{&memory_->region(), offset_bytes, settings_.record_bytes});
  if (result != PostResult::kPosted) [[unlikely]] {
    if (result == PostResult::kFailed) fail(sender_->error());
    return false;
  }
  if (verify_) sums_[partition_].add(next_number_);
  ++next_number_;
  drawn_ = false;
  return true;
}

void ShuffleSends::send_chunk() {
  const uint64_t begun = PollCost::cycles_now();
  const uint32_t before = left_;
  while (left_ > 0 && send_record()) --left_;
  const bool is_busy = left_ < before || left_ == 0;
  const uint32_t completed = left_ > 0 ? sender_->poll() : 0;
  if (is_busy || completed > 0) cycles_ += PollCost::cycles_now() - begun;
  if (!sender_->status().ok()) [[unlikely]]
    fail(sender_->status());
}

Status ShuffleSends::send_last() {
  std::vector<char> record(settings_.record_bytes);
  for (uint32_t receiver = 0; receiver < receivers_; ++receiver) {
    const LastRecord last{.stamp = {.sender = number_, .phase = phase_ | kLastRecord},
                          .sent = sums_[receiver]};
    std::memcpy(record.data(), &last, sizeof(last));
    VERBENA_RETURN_IF_ERROR(sender_->put(receiver, std::string_view(record.data(), record.size())));
  }
  return Status::ok_status();
}

Status ShuffleSends::end(Report& report) {
  if (status_.ok() && !job_.team.halted()) {
    if (verify_) fail(send_last());
    if (status_.ok()) fail(sender_->finish());
  }
  const ShuffleSenderStatistics& statistics = sender_->statistics();
  report.counters[kSentRecords] = next_number_;
  report.counters[kRecordWrites] = statistics.writes;
  report.counters[kCounterWrites] = statistics.counters;
  report.counters[kCreditReads] = statistics.credit_reads;
  report.counters[kRefusals] = statistics.would_block;
  report.counters[kSenderCycles] = cycles_;
  // A chunk may take several polls, of which only the last one finds it done.
  if (phase_kind_ == PhaseKind::kCost && next_number_ > 0) {
    const double chunks = static_cast<double>(next_number_) / settings_.chunk;
    report.costs = {{CpuCost{.cycles = static_cast<double>(cycles_) / chunks},
                     static_cast<uint64_t>(chunks) + 1}};
  }
  return status_;
}

}  // namespace verbena::bench
