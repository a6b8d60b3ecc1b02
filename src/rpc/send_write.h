// SEND/WRITE: request by SEND, response by WRITE.
//
//   requester                                      responder
//   request slots, R x L  --SEND, imm = slot-->    shared receive queue -> buffer of L
//                                                    completion -> handler
//   response slots, R x V, polled  <--WRITE--      response slots, R x V, sealed
//     mark -> user; cleared before the               then: receive reposted
//     slot is posted again
//
// The responder looks at one completion queue for all its requesters; the requester, who knows for
// what it waits, looks at the one slot where the next response lands. Only requests cost a receive.
#pragma once

#include "src/channel/send_channel.h"
#include "src/rpc/design_point.h"
#include "src/rpc/requester.h"
#include "src/rpc/responder.h"

namespace verbena::rpc {

template <typename Mark, ReceiveQueues kReceives = ReceiveQueues::kShared>
struct SendWrite {
  static constexpr Protocol kProtocol = Protocol::kSendWrite;
  static constexpr MarkLayout kLayout = kLayoutOf<Mark>;
  static constexpr ReceiveQueues kReceiveQueues = kReceives;
  using RequestChannel = channel::SendChannel;
  using ResponseChannel = typename WriteHalf<Mark>::Channel;
  using Requester = ChannelRequester<SendWrite<Mark>>;
  using Responder = ChannelResponder<SendWrite>;

  static DesignCost cost(uint32_t request_bytes, uint32_t response_bytes,
                         const channel::CostInputs& requester,
                         const channel::CostInputs& responder) {
    return cost_of_pair<RequestChannel, ResponseChannel>(request_bytes, response_bytes, requester,
                                                         responder);
  }
};

}  // namespace verbena::rpc
