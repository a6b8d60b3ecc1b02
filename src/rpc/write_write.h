// WRITE/WRITE: request by WRITE, response by WRITE.
//
//   requester                                      responder
//   request slots, R x L, sealed  --WRITE-->       request slots, R x L per requester, polled
//                                                    mark -> handler; cleared
//   response slots, R x V, polled  <--WRITE--      response slots, R x V, sealed
//     mark -> user; cleared before the
//     slot is posted again
//
// One unsignaled WRITE each way and nothing else: no receive, no completion (but the rare signaled
// one), no work for the receiving CPU except to look. The shortest way there is, at the price of
// memory per requester that the responder must look at.
#pragma once

#include "src/rpc/design_point.h"
#include "src/rpc/requester.h"
#include "src/rpc/responder.h"

namespace verbena::rpc {

template <typename Mark, ReceiveQueues kReceives = ReceiveQueues::kShared>
struct WriteWrite {
  static constexpr Protocol kProtocol = Protocol::kWriteWrite;
  static constexpr MarkLayout kLayout = kLayoutOf<Mark>;
  static constexpr ReceiveQueues kReceiveQueues = kReceives;
  using RequestChannel = typename WriteHalf<Mark>::Channel;
  using ResponseChannel = typename WriteHalf<Mark>::Channel;
  using Requester = ChannelRequester<WriteWrite<Mark>>;
  using Responder = ChannelResponder<WriteWrite>;

  static DesignCost cost(uint32_t request_bytes, uint32_t response_bytes,
                         const channel::CostInputs& requester,
                         const channel::CostInputs& responder) {
    return cost_of_pair<RequestChannel, ResponseChannel>(request_bytes, response_bytes, requester,
                                                         responder);
  }
};

}  // namespace verbena::rpc
