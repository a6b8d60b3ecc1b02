// Memory windows: keys to parts of regions.
//
// A window has a place in the region table for its life. Binding fills it in, so peers reach the
// memory as that of a region. A window of type 1 is open to all queue pairs of its protection
// domain; one of type 2 to the queue pair that bound it, which has a domain of its own for that
// (window_domain()). The window's key opens nothing here: it has no use as an lkey.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

#include "src/device/soft/objects.h"

namespace verbena::soft {

// BIND_MW and LOCAL_INV are carried out when they are posted, also behind sends that wait for their
// peer; their completions keep the order.
inline bool is_window_request(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_BIND_MW || opcode == IBV_WR_LOCAL_INV;
}

// Whether the objects that a window request names can be those of one. Holds send_lock, like all
// below.
bool check_window_request(const ibv_send_wr& wr);
// The status that the request completes with. Where it takes memory from the peer, that is outside
// of it when this returns. Not within a Flight.
ibv_wc_status carry_out_window_request(Qp& qp, const ibv_send_wr& wr);

// What stands in the send queue of a request that was carried out.
inline ibv_send_wr make_carried_out(const ibv_send_wr& wr, ibv_wc_status status) {
  ibv_send_wr done = wr;
  done.num_sge = 0;
  done.bind_mw = {};
  done.wr.rdma.remote_addr = status;
  return done;
}
inline ibv_wc_status carried_out_status(const ibv_send_wr& wr) {
  return static_cast<ibv_wc_status>(wr.wr.rdma.remote_addr);
}

// SEND_WITH_INV: shuts the connected peer's window of type 2. False if the key is not of one that
// is open to this queue pair. Within a Flight.
bool invalidate_at_peer(Qp& qp, uint32_t key);

}  // namespace verbena::soft
