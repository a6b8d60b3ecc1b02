// Polls the marks of channels, one after the other, while nothing comes: what a polling
// set costs whoever polls it ("mpiiba" 6.4). The closed loop (closed_loop.h) drives it like a
// requester: an operation is one round over all marks, done within the poll.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "src/bench/experiment/point.h"
#include "src/bench/verbs/verbs_connection.h"
#include "src/bench/verbs/verbs_settings.h"
#include "verbena/data_path.h"
#include "verbena/rpc.h"
#include "verbena/status.h"

namespace verbena::bench {

class MarkPoller {
 public:
  // The mark of a channel is the last byte of its entry in the own region.
  MarkPoller(const Point& point, VerbsConnection connection)
      : channels_(verbs_settings(point).entries),
        channel_bytes_(verbs_settings(point).size_bytes),
        connection_(std::move(connection)) {
    waiting_.reserve(point.pending);
    due_.reserve(point.pending);
  }

  PostResult try_post(uint32_t slot, uint32_t /*bytes*/) {
    waiting_.push_back(slot);
    return PostResult::kPosted;
  }

  template <typename Take>
  uint32_t poll(Take&& take) {
    due_.swap(waiting_);
    const auto rounds = static_cast<uint32_t>(due_.size());
    for (const uint32_t slot : due_) {
      poll_marks();
      take(slot, std::span<const char>());
    }
    due_.clear();
    return rounds;
  }

  char* request_buffer(uint32_t /*slot*/) { return connection_.endpoint.arena.data(); }
  bool wait(int64_t /*timeout_ns*/) { return false; }
  const Status& status() const { return status_; }
  MarkLayout mark_layout() const { return MarkLayout::kLastBit; }
  // Marks that were set when they were polled.
  uint64_t found() const { return found_; }

 private:
  void poll_marks() {
    const char* mark = connection_.endpoint.arena.data() + channel_bytes_ - 1;
    for (uint32_t i = 0; i < channels_; ++i, mark += channel_bytes_) {
      found_ += poll_word(mark) != 0 ? 1 : 0;
    }
  }

  const uint32_t channels_;
  const uint64_t channel_bytes_;
  VerbsConnection connection_;
  std::vector<uint32_t> waiting_;  // slots whose round is still to be made
  std::vector<uint32_t> due_;
  uint64_t found_ = 0;
  Status status_;
};

}  // namespace verbena::bench
