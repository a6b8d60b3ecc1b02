// What a request and its response cost under a design: counts, from sizes and settings alone.
#pragma once

#include <cstdint>

#include "src/channel/message_cost.h"
#include "verbena/step_counts.h"

namespace verbena::rpc {

struct DesignCost {
  channel::MessageCost request;
  channel::MessageCost response;

  StepCounts requester() const {
    StepCounts steps = request.sender;
    steps += response.receiver;
    return steps;
  }
  StepCounts responder() const {
    StepCounts steps = request.receiver;
    steps += response.sender;
    return steps;
  }
};

template <typename RequestChannel, typename ResponseChannel>
DesignCost cost_of_pair(uint32_t request_bytes, uint32_t response_bytes,
                        const channel::CostInputs& requester,
                        const channel::CostInputs& responder) {
  return {RequestChannel::cost(request_bytes, requester),
          ResponseChannel::cost(response_bytes, responder)};
}

}  // namespace verbena::rpc
