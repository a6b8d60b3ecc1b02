// A reader of the log in a load: it checks what it reads, and makes room for what is appended.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/bench/log/log_entries.h"
#include "src/bench/run/coordination.h"
#include "verbena/apps/log.h"
#include "verbena/connection.h"
#include "verbena/device.h"
#include "verbena/status.h"

namespace verbena::bench {

class LogTail {
 public:
  // `trims`: this one makes room, while others read the same log.
  LogTail(const Point& point, bool trims);

  Status open(const Device& device, const ProtectionDomain& domain,
              std::span<ControlConnection* const> replicas);
  void begin(const Phase& phase, bool verify);
  // Reads and checks what is there: how many entries. With `trims`, what was read long enough ago
  // for other readers to have read it goes.
  Result<size_t> read();
  // All writers have ended the phase, and their entries were read.
  bool is_over() const { return check_.is_over(); }
  // Reads and checks all that is there, and drops it.
  Status read_all();
  // Drops all that is there, without reading it.
  Status drop();
  // Goes on at what was not dropped.
  Status rewind() { return reader_->seek(LogStart::kOldest); }
  void end(Report& report) const;

 private:
  Status trim_behind();

  const Point& point_;
  const bool trims_;
  const uint64_t trimmed_entries_;  // at once
  std::unique_ptr<LogReader> reader_;
  EntryCheck check_;
  uint64_t skipped_before_ = 0;
  // Read since the last mark; where that was, and the one before.
  uint64_t read_entries_ = 0;
  LogPosition marked_ = 0;
  LogPosition marked_before_ = 0;
};

}  // namespace verbena::bench
