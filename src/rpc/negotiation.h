// What requester and responder agree on before they trade endpoints (src/connect/exchange.h).
//
//   requester                              responder
//     request: design and sizes       ->     accepts it, or refuses with a reason
//                                     <-     accept: its own design
#pragma once

#include <cstdint>

#include "verbena/connection.h"
#include "verbena/rpc.h"
#include "verbena/status.h"

namespace verbena::rpc {

// The design and the sizes that a requester asks for, or a responder offers at most.
struct DesignRequest {
  Protocol protocol = Protocol::kWriteWrite;
  MarkLayout layout = MarkLayout::kLastBit;
  Transport transport = Transport::kRc;
  bool writes_in_order = false;  // into this side's memory
  uint32_t request_max_bytes = 0;
  uint32_t response_max_bytes = 0;
  uint32_t pending = 0;
};

// What a requester and a responder agreed on, and the layout that the requester's options name;
// kAutomatic: they leave the design, or its layout, to the responder.
struct DesignAgreement : DesignRequest {
  MarkLayout asked = MarkLayout::kAutomatic;
};

// The layout that a side can use where it was asked for `layout`.
inline MarkLayout usable_layout(MarkLayout layout, bool writes_in_order) {
  if (writes_in_order || layout == MarkLayout::kAutomatic) return layout;
  return needs_writes_in_order(layout) ? MarkLayout::kImmediate : layout;
}

// Whether messages of the protocol can be lost over the transport, without anybody sending them
// again.
Status check_transport(Protocol protocol, Transport transport);

// What the connection uses if `wanted` meets `offered`; pure. The requester's sizes, the
// responder's layout, and its protocol too where the requester's is kAutomatic.
Result<DesignRequest> negotiate(const DesignRequest& wanted, const DesignRequest& offered);

// The requester's side: its own sizes, and the layout that the responder chose.
Result<DesignRequest> request_design(ControlConnection& control, const DesignRequest& wanted,
                                     int64_t timeout_ns);
// The responder's side.
Result<DesignRequest> accept_design(ControlConnection& control, const DesignRequest& offered,
                                    int64_t timeout_ns);

}  // namespace verbena::rpc
