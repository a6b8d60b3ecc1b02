// What requester and responder tell each other over the control connection before the first
// message.
//
//   requester                              responder
//     terms: design and sizes         ->     accepts them, or refuses with a reason
//                                     <-     verdict
//     endpoint: queue pair, slots     <->    endpoint
//     both connect their queue pairs
//     ready                           <->    ready
//
// Each step can carry a failure instead, so that the other side learns the reason and neither waits
// in vain. Every number is checked before anything is made from it.
#pragma once

#include <cstdint>
#include <string>

#include "verbena/connection.h"
#include "verbena/device.h"
#include "verbena/rpc.h"
#include "verbena/status.h"

namespace verbena::rpc {

inline constexpr uint16_t kRpcVersion = 2;

// What one side wants, or offers at most.
struct Terms {
  Protocol protocol = Protocol::kWriteWrite;
  MarkLayout layout = MarkLayout::kLastBit;
  bool writes_in_order = false;  // into this side's memory
  uint32_t request_max_bytes = 0;
  uint32_t response_max_bytes = 0;
  uint32_t pending = 0;
};

// The layout that a side can use where it was asked for `layout`.
inline MarkLayout usable_layout(MarkLayout layout, bool writes_in_order) {
  return writes_in_order || !needs_writes_in_order(layout) ? layout : MarkLayout::kImmediate;
}

// What the connection uses if `wanted` meets `offered`; pure. The requester's sizes, the
// responder's layout.
Result<Terms> agree(const Terms& wanted, const Terms& offered);

// The requester's side: its own sizes, and the layout that the responder chose.
Result<Terms> propose(ControlConnection& control, const Terms& wanted, int64_t timeout_ns);
// The responder's side.
Result<Terms> consider(ControlConnection& control, const Terms& offered, int64_t timeout_ns);

// What the peer needs to know of a side's queue pair and memory.
struct EndpointTerms {
  QueuePairAddress address;
  uint32_t connection = 0;     // number of the connection here: goes into messages' immediates
  uint64_t slots_address = 0;  // where the peer may write its messages; 0 bytes: nowhere
  uint64_t slots_bytes = 0;
  uint32_t slots_rkey = 0;
  uint64_t signals_address = 0;  // and where it may announce them
  uint64_t signals_bytes = 0;
  uint32_t signals_rkey = 0;
  uint64_t readable_address = 0;  // READ
  uint64_t readable_bytes = 0;
  uint32_t readable_rkey = 0;
  uint8_t max_outstanding_reads = 0;
};

// What this side needs of the peer's endpoint.
struct EndpointNeeds {
  uint64_t slots_bytes = 0;
  uint64_t signals_bytes = 0;
  bool readable = false;
};
// Whether a peer's numbers can be true and suffice; pure.
Status check_endpoint(const EndpointTerms& terms, const EndpointNeeds& needs);

// Sends the own endpoint, or why there is none, and returns the peer's. What check_endpoint() finds
// wrong with it goes into confirm(), so that the peer learns it too.
Result<EndpointTerms> exchange_endpoints(ControlConnection& control,
                                         const Result<EndpointTerms>& mine, int64_t timeout_ns);

// Tells the peer whether this side is ready, and waits until the peer is.
Status confirm(ControlConnection& control, const Status& mine, int64_t timeout_ns);

}  // namespace verbena::rpc
