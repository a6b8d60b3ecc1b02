// What one message costs, counted, not timed: which steps each CPU and each device takes for it.
// Times differ between devices; the counts are what a protocol decides.
#pragma once

#include <cstdint>

namespace verbena::channel {

// What the counts depend on besides the size of the message.
struct CostInputs {
  uint32_t inline_limit_bytes = 0;
  uint32_t signal_interval = 1;
  uint32_t post_batch = 1;
  uint32_t repost_batch = 1;
};

// Averages per message.
struct SideCost {
  double work_requests = 0;      // built and posted for the send queue
  double doorbells = 0;          // of the send queue: lists posted
  double receives = 0;           // posted
  double receive_doorbells = 0;  // of the receive queue: lists posted
  double completions = 0;        // taken from a completion queue
  double polled_lines = 0;       // cache lines that one look for a message touches
  double cleared_bytes = 0;      // of marks and messages, after use
  double copied_bytes = 0;       // by the CPU, between buffers
  double device_reads = 0;       // by the device: payloads, and receives that messages consume

  SideCost& operator+=(const SideCost& other) {
    work_requests += other.work_requests;
    doorbells += other.doorbells;
    receives += other.receives;
    receive_doorbells += other.receive_doorbells;
    completions += other.completions;
    polled_lines += other.polled_lines;
    cleared_bytes += other.cleared_bytes;
    copied_bytes += other.copied_bytes;
    device_reads += other.device_reads;
    return *this;
  }
};

struct MessageCost {
  SideCost sender;
  SideCost receiver;
  double wire_bytes = 0;  // payload, padding and mark; without the link's headers
  double wire_messages = 1;
};

// What every channel's sender does for `wire_bytes` of one message.
inline MessageCost sending_cost(uint32_t wire_bytes, const CostInputs& inputs) {
  MessageCost cost;
  cost.sender.work_requests = 1;
  cost.sender.doorbells = 1.0 / inputs.post_batch;
  cost.sender.completions = 1.0 / inputs.signal_interval;
  cost.sender.device_reads = wire_bytes > inputs.inline_limit_bytes ? 1 : 0;
  cost.wire_bytes = wire_bytes;
  return cost;
}

// What a receiver does for a message that consumes a receive.
inline SideCost receive_cost(const CostInputs& inputs) {
  SideCost cost;
  cost.receives = 1;
  cost.receive_doorbells = 1.0 / inputs.repost_batch;
  cost.completions = 1;
  cost.polled_lines = 1;  // the completion queue's next entry
  cost.device_reads = 1;  // the posted receive
  return cost;
}

}  // namespace verbena::channel
