// Extended reliable connections (XRC): a process sends to any shared receive queue of an XRC domain
// by one connection.
//
//   xrc_domains.cc    domains, which processes share by a file
//   xrc_send.cc       the queue that a request names; its memory is what the request reaches
//   xrc_receive.cc    what has arrived at a shared receive queue
//   xrc_queues.h      the queues of this process, and who sends to them
//
// The initiator (XRC_SEND) is connected to a target (XRC_RECV) as over RC, and the target says
// whether it receives, with which access and how long a sender waits for a receive. It holds no
// memory: receives, regions and completions are those of the shared receive queue, which may be of
// another process than the target.
#pragma once

#include <vector>

#include "src/device/soft/objects.h"

namespace verbena::soft {

ibv_xrcd* open_xrcd(ibv_context*, ibv_xrcd_init_attr*);
int close_xrcd(ibv_xrcd*);
int get_srq_num(ibv_srq*, uint32_t* number);
ibv_qp* open_qp(ibv_context*, ibv_qp_open_attr*);

// Makes requests reach the shared receive queue `number`, and its regions. IBV_WC_REM_INV_REQ_ERR:
// there is none in the domain of the connected queue pair. IBV_WC_LOC_QP_OP_ERR: its process cannot
// be attached. Holds send_lock, within a Flight.
ibv_wc_status aim_slowly(Qp& qp, uint32_t number);
inline ibv_wc_status aim(Qp& qp, uint32_t number) {
  const PeerQp& peer = qp.peer;
  if (peer.srq.xrc != nullptr && static_cast<uint32_t>(peer.srq.stamp) == number &&
      peer.srq.is_there() && !peer.memory->dead()) [[likely]] {
    return IBV_WC_SUCCESS;
  }
  return aim_slowly(qp, number);
}
// No queue pair of this process reaches the queue any more.
void forget_target(Rnic& rnic, const Srq& srq);
// Those in a process that has ended. Under send_lock.
void forget_targets(Qp& qp, const Peer& process);

// Makes the completions of what has arrived at the XRC queues of `cq`; at most `count`. Holds its
// lock.
int take_xrc(Cq& cq, int count, ibv_wc* wc);
// The claims of processes in `slot`, by the index of the receive; 0 where there is none.
std::vector<uint64_t> claims_of(const Srq& srq, uint32_t slot);
// Posts again the receives that are taken by these claims still, and not filled; whoever made them
// has ended. Wakes the owner if something has arrived, of which an ended sender may not have told.
void reclaim_xrc_receives(Srq& srq, const std::vector<uint64_t>& claims);

}  // namespace verbena::soft
