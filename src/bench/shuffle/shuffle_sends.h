// The records of one sender, as the closed loop (closed_loop.h) posts and polls them: an operation
// takes a chunk of them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "src/bench/run/coordination.h"
#include "src/bench/run/node_job.h"
#include "src/bench/shuffle/shuffle_records.h"
#include "src/bench/shuffle/shuffle_settings.h"
#include "src/memory/arena.h"
#include "verbena/apps/shuffle.h"
#include "verbena/rpc.h"
#include "verbena/status.h"

namespace verbena::bench {

class ShuffleSends {
 public:
  // `number` is the sender's in job.wiring().
  ShuffleSends(NodeJob& job, uint32_t number);

  // Makes the records.
  Status open();

  // --- a phase: prepare(), begin(), the loop, end() ---

  // Connects with all receivers.
  Status prepare(const Phase& phase);
  void begin(const Phase& phase, bool verify);
  void draw(uint32_t /*slot*/) {}
  uint32_t kind(uint32_t /*slot*/) const { return 0; }
  // Ends the stream: all is in the receivers' memory then.
  Status end(Report& report);

  // --- of the loop ---

  PostResult try_post(uint32_t /*slot*/, uint32_t /*bytes*/) {
    left_ = settings_.chunk;
    return status_.ok() ? PostResult::kPosted : PostResult::kFailed;
  }
  template <typename Take>
  uint32_t poll(Take&& take) {
    send_chunk();
    if (left_ > 0) return 0;
    take(0, std::span<const char>());
    return 1;
  }
  char* request_buffer(uint32_t /*slot*/) { return nullptr; }
  bool wait(int64_t /*timeout_ns*/) { return false; }
  const Status& status() const { return status_; }
  MarkLayout mark_layout() const { return MarkLayout::kLastBit; }

 private:
  // Sends what is left of the chunk, as far as there is room.
  void send_chunk();
  // False: there is no room, or status_.
  bool send_record();
  // Whether the memory of the next record is free.
  bool has_memory();
  Status send_last();
  void fail(const Status& status) {
    if (status_.ok()) status_ = status;
  }

  NodeJob& job_;
  const uint32_t number_;
  const ShuffleSettings& settings_;
  const uint32_t receivers_;
  const uint64_t ring_records_;
  std::optional<RegisteredArena> memory_;  // a ring of records
  std::unique_ptr<ShuffleSender> sender_;
  std::vector<RecordSum> sums_;  // by receiver
  uint32_t phase_ = 0;
  PhaseKind phase_kind_ = PhaseKind::kWarmUp;
  bool verify_ = false;
  bool drawn_ = false;      // the next record has its receiver
  uint32_t partition_ = 0;  // ... this one
  uint32_t left_ = 0;       // of the chunk
  uint64_t next_number_ = 0;
  uint64_t completed_ = 0;  // records whose memory is free again
  uint64_t flushed_at_ = 0;
  uint64_t cycles_ = 0;
  Status status_;
};

}  // namespace verbena::bench
