// SEND/SEND: request by SEND, response by SEND.
//
//   requester                                      responder
//   request slots, R x L  --SEND, imm = slot-->    shared receive queue -> buffer of L
//                                                    completion -> handler
//   own receive queue -> buffer of V  <--SEND--    response slots, R x V
//     completion -> user                             then: receive reposted
//
// Neither side knows an address of the other's, and nothing is polled but completion queues: the
// responder's cost of looking does not grow with its connections. In exchange every message takes a
// receive to post and a completion to poll, on both sides.
#pragma once

#include "src/channel/send_channel.h"
#include "src/rpc/design_point.h"
#include "src/rpc/requester.h"
#include "src/rpc/responder.h"

namespace verbena::rpc {

template <ReceiveQueues kReceives = ReceiveQueues::kShared>
struct SendSend {
  static constexpr Protocol kProtocol = Protocol::kSendSend;
  static constexpr MarkLayout kLayout = MarkLayout::kImmediate;  // no WRITE, no mark
  static constexpr ReceiveQueues kReceiveQueues = kReceives;
  using RequestChannel = channel::SendChannel;
  using ResponseChannel = channel::SendChannel;
  using Requester = ChannelRequester<SendSend<>>;
  using Responder = ChannelResponder<SendSend>;

  static DesignCost cost(uint32_t request_bytes, uint32_t response_bytes,
                         const channel::CostInputs& requester,
                         const channel::CostInputs& responder) {
    return cost_of_pair<RequestChannel, ResponseChannel>(request_bytes, response_bytes, requester,
                                                         responder);
  }
};

}  // namespace verbena::rpc
