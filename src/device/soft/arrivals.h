// What a poll makes of the packets that have arrived at a connected queue pair: it takes the
// receive a packet belongs to, puts an inline payload into the receive buffer, and makes the
// completion. Holds the lock of the receive completion queue.
#pragma once

#include "src/base/shared_memory.h"
#include "src/device/soft/objects.h"

namespace verbena::soft {

inline void fill_completion(const Qp& qp, uint64_t wr_id, ibv_wc_status status, ibv_wc& wc) {
  wc.wr_id = wr_id;
  wc.status = status;
  wc.opcode = IBV_WC_RECV;
  wc.vendor_err = 0;
  wc.byte_len = 0;
  wc.imm_data = 0;
  wc.qp_num = qp.number;
  wc.src_qp = qp.attributes.dest_qp_num;
  wc.wc_flags = 0;
  wc.pkey_index = 0;
  wc.slid = 0;
  wc.sl = 0;
  wc.dlid_path_bits = 0;
}

// What a packet says, each field read once: the peer may change them while they are checked.
struct PacketFields {
  uint8_t kind;
  uint16_t receive_index;
  uint32_t byte_count;
  uint32_t inline_bytes;
};
inline PacketFields read_fields(const Packet& packet) {
  return {load_relaxed(&packet.kind), load_relaxed(&packet.receive_index),
          load_relaxed(&packet.byte_count), load_relaxed(&packet.inline_bytes)};
}

// Puts an inline payload into the buffers of a receive. False if one of them is not registered any
// more in the domain.
bool deliver_inline(const RegionEntry* regions, uint32_t domain, const PostedReceive& receive,
                    const std::byte* payload, uint32_t size_bytes);

// Fills in what the packet says of its receive.
inline void complete_receive(const RegionEntry* regions, uint32_t domain,
                             const PostedReceive& receive, const Packet& packet,
                             const PacketFields& fields, ibv_wc& wc) {
  switch (fields.kind & kPacketKindMask) {
    case kPacketSend:
      wc.byte_len = fields.byte_count;
      if (fields.byte_count > receive.length_bytes || fields.inline_bytes > kPacketInlineBytes ||
          (fields.inline_bytes != 0 && fields.inline_bytes != fields.byte_count)) [[unlikely]] {
        wc.status = IBV_WC_LOC_LEN_ERR;
      } else if (fields.inline_bytes > 0 &&
                 !deliver_inline(regions, domain, receive, packet.payload, fields.inline_bytes))
          [[unlikely]] {
        wc.status = IBV_WC_LOC_PROT_ERR;
      }
      break;
    case kPacketWrite:
      wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
      wc.byte_len = fields.byte_count;
      break;
    case kPacketProtectionError:
      wc.status = IBV_WC_LOC_PROT_ERR;
      break;
    case kPacketAccessError:
      wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
      wc.status = IBV_WC_LOC_ACCESS_ERR;
      break;
    case kPacketFlushed:
      wc.status = IBV_WC_WR_FLUSH_ERR;
      break;
    default:
      wc.status = IBV_WC_LOC_LEN_ERR;
      break;
  }
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

// The short way of complete_packet(), of what most packets are: a short SEND without an immediate
// that the first piece of its receive has room for. False: it is of another form, or it meets
// something else than memory that is open to it; nothing was done.
bool complete_at_once(Qp& qp, ibv_wc& wc);

// Makes the completion of the next packet or datagram of `qp`, if there is one.
inline bool take_packet(Qp& qp, ibv_wc& wc, Broken& broken) {
  if (qp.datagrams != nullptr) [[unlikely]]
    return ud_take(qp, wc, broken);
  return qp.arrivals.arrived() && (complete_at_once(qp, wc) || complete_packet(qp, wc, broken));
}

}  // namespace verbena::soft
