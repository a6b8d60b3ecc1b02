// What a request and its response cost under a protocol: counts, from sizes and settings alone.
#pragma once

#include <cstdint>
#include <string>

#include "src/channel/message_cost.h"
#include "verbena/rpc.h"

namespace verbena::rpc {

struct CostEstimate {
  channel::SideCost requester;
  channel::SideCost responder;
  double wire_messages = 0;
  double wire_bytes = 0;  // both ways, without the link's headers
};

// A protocol that is a request channel and a response channel costs the sum of both.
template <typename RequestChannel, typename ResponseChannel>
CostEstimate estimate_pair(uint32_t request_bytes, uint32_t response_bytes,
                           const channel::CostInputs& inputs) {
  const channel::MessageCost request = RequestChannel::cost(request_bytes, inputs);
  const channel::MessageCost response = ResponseChannel::cost(response_bytes, inputs);
  CostEstimate estimate;
  estimate.requester = request.sender;
  estimate.requester += response.receiver;
  estimate.responder = request.receiver;
  estimate.responder += response.sender;
  estimate.wire_messages = request.wire_messages + response.wire_messages;
  estimate.wire_bytes = request.wire_bytes + response.wire_bytes;
  return estimate;
}

// A table with a line per kind of step, requester and responder side by side.
std::string to_string(const CostEstimate& estimate);

}  // namespace verbena::rpc
