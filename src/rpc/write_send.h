// WRITE/SEND: request by WRITE, response by SEND.
//
//   requester                                      responder
//   request slots, R x L, sealed  --WRITE-->       request slots, R x L per requester, polled
//                                                    mark -> handler; cleared
//   own receive queue -> buffer of V  <--SEND--    response slots, R x V
//     completion -> user;
//     receive reposted with the next request
//
// The responder neither posts receives nor takes completions; it looks at one slot per requester
// and poll, so empty ones cost it ("patterns" 7). The requester pays for the response's receive.
#pragma once

#include "src/channel/send_channel.h"
#include "src/rpc/design_point.h"
#include "src/rpc/requester.h"
#include "src/rpc/responder.h"

namespace verbena::rpc {

template <typename Mark, ReceiveQueues kReceives = ReceiveQueues::kShared>
struct WriteSend {
  static constexpr Protocol kProtocol = Protocol::kWriteSend;
  static constexpr MarkLayout kLayout = kLayoutOf<Mark>;
  static constexpr ReceiveQueues kReceiveQueues = kReceives;
  using RequestChannel = typename WriteHalf<Mark>::Channel;
  using ResponseChannel = channel::SendChannel;
  using Requester = ChannelRequester<WriteSend<Mark>>;
  using Responder = ChannelResponder<WriteSend>;

  static DesignCost cost(uint32_t request_bytes, uint32_t response_bytes,
                         const channel::CostInputs& requester,
                         const channel::CostInputs& responder) {
    return cost_of_pair<RequestChannel, ResponseChannel>(request_bytes, response_bytes, requester,
                                                         responder);
  }
};

}  // namespace verbena::rpc
