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

template <template <typename Mark> typename Design, typename Function>
decltype(auto) with_mark_layout(MarkLayout layout, Function&& function) {
  switch (layout) {
    case MarkLayout::kLastBit:
      return function.template operator()<Design<channel::LastBitMark>>();
    case MarkLayout::kLengthMarkers:
      return function.template operator()<Design<channel::LengthMarkersMark>>();
    case MarkLayout::kHeadTail:
      return function.template operator()<Design<channel::HeadTailMark>>();
    case MarkLayout::kImmediate:
      break;
  }
  VERBENA_ASSERT(layout == MarkLayout::kImmediate);
  return function.template operator()<Design<ImmediateMark>>();
}

template <typename Function>
decltype(auto) with_design_point(Protocol protocol, MarkLayout layout, Function&& function) {
  switch (protocol) {
    case Protocol::kSendSend:
      return function.template operator()<SendSend>();
    case Protocol::kSendWrite:
      return with_mark_layout<SendWrite>(layout, function);
    case Protocol::kWriteSend:
      return with_mark_layout<WriteSend>(layout, function);
    case Protocol::kWriteWrite:
      return with_mark_layout<WriteWrite>(layout, function);
    case Protocol::kRead:
      break;
  }
  VERBENA_ASSERT(protocol == Protocol::kRead);
  return function.template operator()<Read>();
}

}  // namespace verbena::rpc
