// What one message costs, counted, not timed: which steps each CPU and each device takes for it.
// Times differ between devices; the counts are what a protocol decides.
#pragma once

#include <cstdint>

#include "verbena/step_counts.h"

namespace verbena::channel {

// What the counts depend on besides the size of the message.
struct CostInputs {
  uint32_t inline_limit_bytes = 0;
  uint32_t signal_interval = 1;
  uint32_t post_batch = 1;
};

struct MessageCost {
  StepCounts sender;
  StepCounts receiver;
  uint32_t wire_bytes = 0;  // payload, padding and mark; without the link's headers
  uint32_t wire_messages = 1;
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
inline StepCounts receive_cost() {
  StepCounts cost;
  cost.receives = 1;
  cost.completions = 1;
  cost.polled_lines = 1;  // the completion queue's next CQE
  cost.device_reads = 1;  // the posted receive
  return cost;
}

}  // namespace verbena::channel
