// The batches of one writer, as the closed loop (closed_loop.h) posts and polls them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "src/bench/log/log_entries.h"
#include "src/bench/log/log_settings.h"
#include "src/bench/log/log_tail.h"
#include "src/bench/run/coordination.h"
#include "src/bench/run/node_job.h"
#include "src/memory/arena.h"
#include "verbena/apps/log.h"
#include "verbena/connection.h"
#include "verbena/remote.h"
#include "verbena/remote_sockets.h"
#include "verbena/rpc.h"
#include "verbena/status.h"

namespace verbena::bench {

// Where no thread reads, writers make room themselves: each drops what was appended, from time to
// time and when the log is full. With `verify` the first one alone does, which reads and checks all
// of it before.
class LogAppends {
 public:
  // `number` is the writer's in job.wiring(). `tail`: none where other threads read.
  LogAppends(NodeJob& job, uint32_t number, const SocketDevice& device,
             std::optional<LogTail>& tail);

  Status open(std::span<ControlConnection* const> replicas);

  // --- a phase: begin(), the loop, end() ---

  void begin(const Phase& phase, bool verify);
  void draw(uint32_t /*slot*/) {}
  uint32_t kind(uint32_t /*slot*/) const { return 0; }
  // Waits for what is pending, and appends the writer's last entry.
  Status end(Report& report);

  // --- of the loop ---

  PostResult try_post(uint32_t slot, uint32_t bytes);
  template <typename Take>
  uint32_t poll(Take&& take) {
    const uint32_t found = writer_->poll([&](const LogCompletion& done) {
      const auto slot = static_cast<uint32_t>(done.token);
      if (appended(slot, done)) take(slot, std::span<const char>());
    });
    if (!again_.empty()) [[unlikely]]
      post_again();
    if (found == 0 && !writer_->status().ok()) [[unlikely]]
      fail(writer_->status());
    if (unread_bytes_ >= dropped_bytes_) [[unlikely]]
      make_room();
    return found;
  }
  char* request_buffer(uint32_t /*slot*/) { return nullptr; }
  bool wait(int64_t /*timeout_ns*/) { return false; }
  const Status& status() const { return status_; }
  MarkLayout mark_layout() const { return MarkLayout::kLastBit; }

 private:
  // False: it is not in the log, and will be posted again.
  bool appended(uint32_t slot, const LogCompletion& done);
  void post_again();
  void append_last();
  void make_room();
  bool reads() const { return verify_ && number_ == 0; }
  void fail(const Status& status) {
    if (status_.ok()) status_ = status;
  }

  NodeJob& job_;
  const uint32_t number_;
  const SocketDevice device_;
  const LogSettings& settings_;
  std::optional<LogTail>& tail_;
  // What this writer may append before it makes room.
  const uint64_t dropped_bytes_;
  std::optional<RegisteredArena> memory_;  // the entries of all slots
  std::unique_ptr<LogWriter> writer_;
  std::vector<LocalSlice> slices_;  // a batch for each slot
  std::vector<uint64_t> first_;     // the number of each slot's first entry
  std::vector<uint32_t> again_;     // slots that will be posted again
  std::vector<uint32_t> posting_;   // ... of which some are refused
  uint32_t phase_ = 0;
  bool verify_ = false;
  uint64_t next_number_ = 0;
  uint64_t unread_bytes_ = 0;
  EntrySum acknowledged_;
  uint64_t batches_ = 0;
  uint64_t skipped_ = 0;
  uint64_t full_waits_ = 0;
  Status status_;
};

}  // namespace verbena::bench
