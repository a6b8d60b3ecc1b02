#include "src/bench/log/log_tail.h"

#include <algorithm>

#include "src/bench/log/log_settings.h"

namespace verbena::bench {

namespace {

// A writer that is stopped for longer is told so, and appends again. So long is waited for room
// that was reserved in vain, too, where several writers found the log full at once.
constexpr uint64_t kHoleLeaseNs = 50'000'000;
// Parts of the log, each of which is trimmed when the reader is two parts ahead; and what a reader
// takes at once, which has to be less than a part.
constexpr uint64_t kTrimmedParts = 8;
constexpr uint64_t kMostChunkBytes = 256 << 10;
constexpr uint64_t kLeastChunkBytes = 4 << 10;

// What an entry takes in the log, about, with all that describes it.
uint64_t space_bytes(const LogSettings& settings) {
  constexpr uint64_t kEntry = 16;
  constexpr uint64_t kBatch = 96;
  return settings.entry_bytes + kEntry + kBatch / settings.batch;
}

}  // namespace

LogTail::LogTail(const Point& point, bool trims)
    : point_(point),
      trims_(trims),
      trimmed_entries_(log_settings(point).capacity_bytes / kTrimmedParts /
                       space_bytes(log_settings(point))) {}

Status LogTail::open(const Device& device, const ProtectionDomain& domain,
                     std::span<ControlConnection* const> replicas) {
  VERBENA_ASSIGN_OR_RETURN(
      reader_, open_log_reader(device, domain, replicas,
                               {.chunk_bytes = static_cast<uint32_t>(std::clamp(
                                    log_settings(point_).capacity_bytes / kTrimmedParts / 2,
                                    kLeastChunkBytes, kMostChunkBytes)),
                                .hole_lease_ns = kHoleLeaseNs,
                                .handshake_timeout_ns = kSetupTimeoutNs}));
  marked_ = marked_before_ = reader_->position();
  return Status::ok_status();
}

void LogTail::begin(const Phase& phase, bool verify) {
  check_.begin(static_cast<uint32_t>(phase.number), point_.nodes * point_.threads,
               log_writers(point_), log_settings(point_).entry_bytes, verify);
  skipped_before_ = reader_->statistics().skipped_places;
}

Result<size_t> LogTail::read() {
  VERBENA_ASSIGN_OR_RETURN(const std::span<const LogRecord> records, reader_->next());
  for (const LogRecord& record : records) check_.take(record.position, record.bytes);
  read_entries_ += records.size();
  if (trims_ && read_entries_ >= trimmed_entries_) VERBENA_RETURN_IF_ERROR(trim_behind());
  return records.size();
}

Status LogTail::trim_behind() {
  const LogPosition here = reader_->position();
  VERBENA_RETURN_IF_ERROR(reader_->seek(LogStart::kPosition, marked_before_));
  VERBENA_RETURN_IF_ERROR(reader_->trim());
  VERBENA_RETURN_IF_ERROR(reader_->seek(LogStart::kPosition, here));
  marked_before_ = marked_;
  marked_ = here;
  read_entries_ = 0;
  return Status::ok_status();
}

Status LogTail::read_all() {
  for (;;) {
    VERBENA_ASSIGN_OR_RETURN(const size_t count, read());
    if (count == 0) return reader_->trim();
  }
}

Status LogTail::drop() {
  VERBENA_RETURN_IF_ERROR(reader_->seek(LogStart::kNewest));
  return reader_->trim();
}

void LogTail::end(Report& report) const {
  report.counters[kReadEntries] = check_.entries();
  report.counters[kSkippedPlaces] = reader_->statistics().skipped_places - skipped_before_;
  report.mismatches += check_.mismatches();
}

}  // namespace verbena::bench
