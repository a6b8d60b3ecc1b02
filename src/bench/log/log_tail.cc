#include "src/bench/log/log_tail.h"

#include "src/bench/log/log_settings.h"

namespace verbena::bench {

namespace {

// A writer that is stopped by its machine for less is not given up.
constexpr uint64_t kHoleLeaseNs = 10'000'000'000;
// Each part of the log that was read is trimmed when the reader is two parts ahead.
constexpr uint64_t kTrimmedParts = 8;

}  // namespace

LogTail::LogTail(const Point& point, bool trims)
    : point_(point),
      trims_(trims),
      trimmed_bytes_(log_settings(point).capacity_bytes / kTrimmedParts) {}

Status LogTail::open(const Device& device, const ProtectionDomain& domain,
                     std::span<ControlConnection* const> replicas) {
  VERBENA_ASSIGN_OR_RETURN(reader_, open_log_reader(device, domain, replicas,
                                                    {.hole_lease_ns = kHoleLeaseNs,
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
  for (const LogRecord& record : records) {
    check_.take(record.position, record.bytes);
    read_bytes_ += record.bytes.size();
  }
  if (trims_ && read_bytes_ >= trimmed_bytes_) VERBENA_RETURN_IF_ERROR(trim_behind());
  return records.size();
}

Status LogTail::trim_behind() {
  const LogPosition here = reader_->position();
  VERBENA_RETURN_IF_ERROR(reader_->seek(LogStart::kPosition, marked_before_));
  VERBENA_RETURN_IF_ERROR(reader_->trim());
  VERBENA_RETURN_IF_ERROR(reader_->seek(LogStart::kPosition, here));
  marked_before_ = marked_;
  marked_ = here;
  read_bytes_ = 0;
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
