// From a protocol and a layout chosen at run time to the design compiled for them: once, outside of
// every loop.
//
//   with_design_point(protocol, layout, [&]<typename Design>() {
//     auto requester = Design::Requester::create(device, domain, control, options);
//     ...                                                 // no choice left in here
//   });
#pragma once

#include <utility>

#include "src/base/assert.h"
#include "src/channel/head_tail_mark.h"
#include "src/channel/last_bit_mark.h"
#include "src/channel/length_markers_mark.h"
#include "src/rpc/design.h"
#include "src/rpc/read.h"
#include "src/rpc/send_send.h"
#include "src/rpc/send_write.h"
#include "src/rpc/write_send.h"
#include "src/rpc/write_write.h"
#include "verbena/rpc.h"

namespace verbena::rpc {

// Where requests consume no receives, it makes no difference which queue they would come from.
template <template <typename Mark, ReceiveQueues> typename Design, typename Mark,
          ReceiveQueues kReceives>
using DesignFor = Design<Mark, Design<Mark, kReceives>::RequestChannel::kConsumesReceives
                                   ? kReceives
                                   : ReceiveQueues::kShared>;

template <template <typename Mark, ReceiveQueues> typename Design,
          ReceiveQueues kReceives = ReceiveQueues::kShared, typename Function>
decltype(auto) with_mark_layout(MarkLayout layout, Function&& function) {
  switch (layout) {
    case MarkLayout::kLastBit:
      return function.template operator()<DesignFor<Design, channel::LastBitMark, kReceives>>();
    case MarkLayout::kLengthMarkers:
      return function
          .template operator()<DesignFor<Design, channel::LengthMarkersMark, kReceives>>();
    case MarkLayout::kHeadTail:
      return function.template operator()<DesignFor<Design, channel::HeadTailMark, kReceives>>();
    case MarkLayout::kDense:
      return function.template operator()<DesignFor<Design, DenseMark, kReceives>>();
    case MarkLayout::kImmediate:
      break;
  }
  VERBENA_ASSERT(layout == MarkLayout::kImmediate);
  return function.template operator()<DesignFor<Design, ImmediateMark, kReceives>>();
}

template <ReceiveQueues kReceives = ReceiveQueues::kShared, typename Function>
decltype(auto) with_design_point(Protocol protocol, MarkLayout layout, Function&& function) {
  switch (protocol) {
    case Protocol::kSendSend:
      return function.template operator()<SendSend<kReceives>>();
    case Protocol::kSendWrite:
      return with_mark_layout<SendWrite, kReceives>(layout, function);
    case Protocol::kWriteSend:
      return with_mark_layout<WriteSend, kReceives>(layout, function);
    case Protocol::kWriteWrite:
      return with_mark_layout<WriteWrite, kReceives>(layout, function);
    case Protocol::kRead:
      break;
  }
  VERBENA_ASSERT(protocol == Protocol::kRead);
  return function.template operator()<Read>();
}

// The same for the responder's side, which has one choice more.
template <typename Function>
decltype(auto) with_design_point(Protocol protocol, MarkLayout layout, ReceiveQueues receives,
                                 Function&& function) {
  if (receives == ReceiveQueues::kPerConnection) {
    return with_design_point<ReceiveQueues::kPerConnection>(protocol, layout, function);
  }
  return with_design_point<ReceiveQueues::kShared>(protocol, layout, function);
}

}  // namespace verbena::rpc
