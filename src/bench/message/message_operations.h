// The operations of rank 0, as the closed loop (closed_loop.h) posts and polls them. Each is done
// within a poll: nothing is left between two operations, as in an MPI program.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "src/bench/message/message_collectives.h"
#include "src/bench/message/message_pairs.h"
#include "src/bench/message/message_rank.h"
#include "src/bench/message/message_replay.h"
#include "src/bench/run/coordination.h"
#include "verbena/posting.h"
#include "verbena/rpc.h"
#include "verbena/status.h"

namespace verbena::bench {

// What a rank does in each operation of the point's micro-benchmark.
class MessageProgram {
 public:
  explicit MessageProgram(MessageRank& rank) : rank_(rank) {}

  Status open() {
    if (rank_.settings().test == MessageTest::kReplay) return replay_.emplace(rank_).open();
    if (is_collective(rank_.settings().test)) {
      return collectives_.emplace(rank_).open();
    }
    return pairs_.emplace(rank_).open();
  }
  void begin(const Phase& phase) {
    rank_.begin(phase);
    if (pairs_) pairs_->begin();
    if (collectives_) collectives_->begin();
    if (replay_) replay_->begin(phase);
  }
  // Of rank 0. False: the phase has ended before, or see status() of the rank.
  bool run() {
    if (replay_) return replay_->run();
    return pairs_ ? pairs_->run() : collectives_->run();
  }
  // Of the others: until the phase ends.
  void take_part() {
    if (pairs_) return pairs_->answer();
    while (run()) {
    }
    if (replay_) replay_->abandon();
  }
  uint64_t operations() const {
    if (replay_) return replay_->operations();
    return pairs_ ? pairs_->operations() : collectives_->operations();
  }
  // Ranks beside rank 0 that this one exchanges long messages with.
  std::vector<uint32_t> partners() const {
    return collectives_ ? collectives_->partners() : std::vector<uint32_t>();
  }

 private:
  MessageRank& rank_;
  std::optional<MessagePairs> pairs_;
  std::optional<MessageCollectives> collectives_;
  std::optional<MessageReplay> replay_;
};

class MessageOperations {
 public:
  MessageOperations(MessageRank& rank, MessageProgram& program) : rank_(rank), program_(program) {}

  // --- a phase: begin(), the loop, end() ---

  void begin(const Phase& phase, bool /*verify*/) { program_.begin(phase); }
  void draw(uint32_t /*slot*/) {}
  uint32_t kind(uint32_t /*slot*/) const { return 0; }
  Status end(Report& report) {
    rank_.end(report, program_.operations());
    return rank_.status();
  }

  // --- of the loop ---

  PostResult try_post(uint32_t slot, uint32_t /*bytes*/) {
    waiting_.push_back(slot);
    return PostResult::kPosted;
  }
  template <typename Take>
  uint32_t poll(Take&& take) {
    uint32_t done = 0;
    due_.swap(waiting_);
    for (const uint32_t slot : due_) {
      if (!program_.run()) break;
      take(slot, std::span<const char>());
      ++done;
    }
    due_.clear();
    return done;
  }
  char* request_buffer(uint32_t /*slot*/) { return nullptr; }
  bool wait(int64_t /*timeout_ns*/) { return false; }
  const Status& status() const { return rank_.status(); }
  MarkLayout mark_layout() const { return MarkLayout::kLastBit; }

 private:
  MessageRank& rank_;
  MessageProgram& program_;
  std::vector<uint32_t> waiting_;
  std::vector<uint32_t> due_;
};

}  // namespace verbena::bench
