// The buffers of a rank that is replayed: where the program's lay next to each other or overlapped,
// or were used again, these do too.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/bench/message/message_buffers.h"
#include "src/trace/recording.h"

namespace verbena::bench {

// More than that no process can have; a recording may name more.
inline constexpr uint64_t kMostReplayBytes = uint64_t{1} << 47;

class ReplayMemory {
 public:
  // Of a rank's messages between two, and for its collective operations.
  explicit ReplayMemory(const trace::RecordedJob& job, uint32_t rank);

  // kMostReplayBytes + 1: more than can be.
  uint64_t size_bytes() const { return size_bytes_; }
  // Takes the memory. False: there is not so much.
  bool allocate();
  char* at(const trace::Event& event) const;
  // For the offsets of a collective operation's schedule.
  char* scratch() const { return memory_.at(0); }

 private:
  struct Region {
    uint64_t first = 0;  // of the program's addresses
    uint64_t end = 0;
    uint64_t offset = 0;  // in memory_
  };
  std::vector<Region> regions_;
  uint64_t size_bytes_ = 0;
  MessageBuffers memory_;
};

}  // namespace verbena::bench
