// The micro-benchmarks between rank 0 and its active peers: ping-pong latency, and windows of
// messages one way or both ways ("mpiiba" 6.3.1, "bufreuse" 5.1.1), and one-sided operations
// ("bufreuse" 5.1.2).
#pragma once

#include <cstdint>
#include <vector>

#include "src/bench/message/message_buffers.h"
#include "src/bench/message/message_rank.h"
#include "verbena/status.h"

namespace verbena::bench {

// Memory of a rank.
uint64_t pair_memory_bytes(const Point& point);

class MessagePairs {
 public:
  explicit MessagePairs(MessageRank& rank);

  // kLimitExceeded: no memory for the buffers.
  Status open();
  // Of a peer: posts the receives that rank 0 may count on.
  void begin();
  // Of rank 0: one operation.
  bool run();
  // Of a peer: answers until the phase ends.
  void answer();
  // So far in the phase; of a peer those that it answered.
  uint64_t operations() const { return operations_; }

 private:
  // Steps of an operation, which tell its messages apart.
  enum Step : uint32_t { kAsk, kAnswer };

  bool exchange(uint32_t peer);
  bool reach(uint32_t peer);
  bool await_reaches();
  bool push(uint32_t peer);
  bool swap_windows(uint32_t peer);
  bool send_next(uint32_t to, Step step);
  bool receive_next(uint32_t from, Step step);
  // After all receives so far: what came, where it was posted to.
  void check_received(uint32_t from, uint32_t count);
  bool is_active() const { return is_active_rank(rank_.job().setup.point, rank_.number()); }
  bool answer_window();
  bool is_fresh() const;
  char* map_fresh(FreshMemory& memory);

  MessageRank& rank_;
  const uint64_t size_bytes_;
  const uint32_t window_;
  const uint32_t places_;  // receives that may be posted at once
  MessageBuffers sent_from_;
  MessageBuffers received_into_;
  FreshMemory sent_fresh_;
  FreshMemory received_fresh_;
  BufferSequence order_;
  char answer_ = 0;
  std::vector<uint64_t> sent_;      // messages to each rank
  std::vector<uint64_t> received_;  // that were checked
  std::vector<uint64_t> posted_;    // receives
  uint64_t operations_ = 0;
};

}  // namespace verbena::bench
