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
#include "src/rpc/datagram_responder.h"
#include "src/rpc/design_point.h"
#include "src/rpc/negotiation.h"
#include "src/rpc/read.h"
#include "src/rpc/send_send.h"
#include "src/rpc/send_write.h"
#include "src/rpc/unreliable.h"
#include "src/rpc/write_send.h"
#include "src/rpc/write_write.h"
#include "verbena/rpc.h"

namespace verbena::rpc {

template <MarkLayout kLayout>
struct MarkOf;
template <>
struct MarkOf<MarkLayout::kLastBit> {
  using Type = channel::LastBitMark;
};
template <>
struct MarkOf<MarkLayout::kLengthMarkers> {
  using Type = channel::LengthMarkersMark;
};
template <>
struct MarkOf<MarkLayout::kHeadTail> {
  using Type = channel::HeadTailMark;
};
template <>
struct MarkOf<MarkLayout::kImmediate> {
  using Type = ImmediateMark;
};
template <>
struct MarkOf<MarkLayout::kDense> {
  using Type = DenseMark;
};

// Where requests consume no receives, it makes no difference which queue they would come from.
template <template <typename Mark, ReceiveQueues> typename Design, typename Mark,
          ReceiveQueues kReceives>
using DesignFor = Design<Mark, Design<Mark, kReceives>::RequestChannel::kConsumesReceives
                                   ? kReceives
                                   : ReceiveQueues::kShared>;

// The design of a choice that is made when the program is built.
template <Protocol kProtocol, MarkLayout kLayout, ReceiveQueues kReceives>
struct DesignAt;
template <MarkLayout kLayout, ReceiveQueues kReceives>
struct DesignAt<Protocol::kSendSend, kLayout, kReceives> {
  using Type = SendSend<kReceives>;
};
template <MarkLayout kLayout, ReceiveQueues kReceives>
struct DesignAt<Protocol::kSendWrite, kLayout, kReceives> {
  using Type = DesignFor<SendWrite, typename MarkOf<kLayout>::Type, kReceives>;
};
template <MarkLayout kLayout, ReceiveQueues kReceives>
struct DesignAt<Protocol::kWriteSend, kLayout, kReceives> {
  using Type = DesignFor<WriteSend, typename MarkOf<kLayout>::Type, kReceives>;
};
template <MarkLayout kLayout, ReceiveQueues kReceives>
struct DesignAt<Protocol::kWriteWrite, kLayout, kReceives> {
  using Type = DesignFor<WriteWrite, typename MarkOf<kLayout>::Type, kReceives>;
};
template <MarkLayout kLayout, ReceiveQueues kReceives>
struct DesignAt<Protocol::kRead, kLayout, kReceives> {
  using Type = Read;
};

template <Protocol kProtocol, ReceiveQueues kReceives, typename Function>
decltype(auto) with_mark_layout(MarkLayout layout, Function&& function) {
  switch (layout) {
    case MarkLayout::kLastBit:
      return function.template
      operator()<typename DesignAt<kProtocol, MarkLayout::kLastBit, kReceives>::Type>();
    case MarkLayout::kLengthMarkers:
      return function.template
      operator()<typename DesignAt<kProtocol, MarkLayout::kLengthMarkers, kReceives>::Type>();
    case MarkLayout::kHeadTail:
      return function.template
      operator()<typename DesignAt<kProtocol, MarkLayout::kHeadTail, kReceives>::Type>();
    case MarkLayout::kDense:
      return function
          .template operator()<typename DesignAt<kProtocol, MarkLayout::kDense, kReceives>::Type>();
    case MarkLayout::kImmediate:
    case MarkLayout::kAutomatic:
      break;
  }
  VERBENA_ASSERT(layout == MarkLayout::kImmediate);
  return function
      .template operator()<typename DesignAt<kProtocol, MarkLayout::kImmediate, kReceives>::Type>();
}

template <ReceiveQueues kReceives = ReceiveQueues::kShared, typename Function>
decltype(auto) with_design_point(Protocol protocol, MarkLayout layout, Function&& function) {
  switch (protocol) {
    case Protocol::kSendSend:
      return function.template operator()<SendSend<kReceives>>();
    case Protocol::kSendWrite:
      return with_mark_layout<Protocol::kSendWrite, kReceives>(layout, function);
    case Protocol::kWriteSend:
      return with_mark_layout<Protocol::kWriteSend, kReceives>(layout, function);
    case Protocol::kWriteWrite:
      return with_mark_layout<Protocol::kWriteWrite, kReceives>(layout, function);
    case Protocol::kRead:
    case Protocol::kAutomatic:
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

// The same where the transport is a choice, too: check_transport() has said that it goes with the
// protocol.
template <typename Function>
decltype(auto) with_transport(Transport transport, Protocol protocol, MarkLayout layout,
                              ReceiveQueues receives, Function&& function) {
  VERBENA_ASSERT(check_transport(protocol, transport).ok());
  switch (transport) {
    case Transport::kUc:
      if (protocol == Protocol::kWriteWrite)
        return function.template operator()<UnreliableWriteWrite>();
      return function.template operator()<UnreliableSendSend<Transport::kUc>>();
    case Transport::kUd:
      if (receives == ReceiveQueues::kShared)
        return function.template operator()<DatagramSendSend>();
      return function.template operator()<UnreliableSendSend<Transport::kUd>>();
    case Transport::kRc:
      break;
  }
  return with_design_point(protocol, layout, receives, function);
}
// The requester's side, whose receives are its own.
template <typename Function>
decltype(auto) with_transport(Transport transport, Protocol protocol, MarkLayout layout,
                              Function&& function) {
  return with_transport(
      transport, protocol, layout,
      transport == Transport::kRc ? ReceiveQueues::kShared : ReceiveQueues::kPerConnection,
      function);
}

// The transport that a design is compiled for.
template <typename Design>
inline constexpr Transport kTransportOf = [] {
  if constexpr (requires { Design::kTransport; }) {
    return Design::kTransport;
  } else {
    return Transport::kRc;
  }
}();

}  // namespace verbena::rpc
