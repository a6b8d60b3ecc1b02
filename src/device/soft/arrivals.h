// What a poll makes of the packets that have arrived at a connected queue pair: it takes the
// receive a packet belongs to, puts an inline payload into the receive buffer, and makes the
// completion. Holds the lock of the receive completion queue.
#pragma once

#include "src/device/soft/objects.h"

namespace verbena::soft {

inline void fill_completion(const Qp& qp, uint64_t wr_id, ibv_wc_status status, ibv_wc& wc) {
  wc.wr_id = wr_id;
  wc.status = status;
  wc.opcode = IBV_WC_RECV;
  wc.vendor_err = 0;
  wc.byte_len = 0;
  wc.imm_data = 0;
  wc.qp_num = qp.verbs.qp_num;
  wc.src_qp = qp.attributes.dest_qp_num;
  wc.wc_flags = 0;
  wc.pkey_index = 0;
  wc.slid = 0;
  wc.sl = 0;
  wc.dlid_path_bits = 0;
}

// The queue pair that a poll finds in need of the error state. The poll ends there, and brings it
// about when it holds no lock any more.
struct Broken {
  Qp* qp = nullptr;
  int event = kNoEvent;
  void set(Qp& found, int raised) {
    if (found.state.load(std::memory_order_relaxed) == IBV_QPS_ERR) return;
    qp = &found;
    event = raised;
  }
};

// Completes the packet that has arrived. False if it cannot be one: the peer broke the rules.
bool complete_packet(Qp& qp, ibv_wc& wc, Broken& broken);

// Of a datagram (ud_receive.cc).
bool ud_take(Qp& qp, ibv_wc& wc, Broken& broken);

// What a completed receive of a shared receive queue leaves to do.
void release_shared_receive(Srq& srq, PostedReceive& receive, uint16_t receive_index);

// Makes the completion of the next packet or datagram of `qp`, if there is one.
inline bool take_packet(Qp& qp, ibv_wc& wc, Broken& broken) {
  if (qp.datagrams != nullptr) [[unlikely]]
    return ud_take(qp, wc, broken);
  return qp.arrivals.arrived() && complete_packet(qp, wc, broken);
}

}  // namespace verbena::soft
