// Posting to the send queue: the initiator's thread carries the work out, here and now.
//
// A WRITE, READ or atomic is done on the peer's memory as mapped here. A SEND takes the peer's next
// receive: up to kPacketInlineBytes the payload travels in the packet, and the receiver's poll puts
// it into the receive buffer (which nobody may read before); more is placed there directly, and the
// packet only tells. What cannot be done yet (no receive posted, peer not ready) waits at the head
// of the queue, see recovery.cc.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "src/base/shared_memory.h"
#include "src/device/soft/copy.h"
#include "src/device/soft/region_view.h"
#include "src/device/soft/send_queue.h"

namespace verbena::soft {
namespace {

struct Piece {
  std::byte* bytes;
  uint32_t size_bytes;
};

// The gather (or, for READ, scatter) list of a work request, checked.
struct Pieces {
  Piece list[kMaxSges];
  uint32_t count = 0;
  uint32_t size_bytes = 0;
};

constexpr Execution failed(ibv_wc_status status) { return {Outcome::kError, status, 0}; }

bool collect(const Qp& qp, const ibv_send_wr& wr, uint32_t access, Pieces& pieces) {
  for (int i = 0; i < wr.num_sge; ++i) {
    const ibv_sge& sge = wr.sg_list[i];
    if (sge.length == 0) continue;
    std::byte* bytes =
        (wr.send_flags & IBV_SEND_INLINE) != 0
            ? reinterpret_cast<std::byte*>(sge.addr)
            : own_memory(qp.regions, qp.domain, sge.addr, sge.length, sge.lkey, access);
    if (bytes == nullptr) return false;
    pieces.list[pieces.count++] = {bytes, sge.length};
    pieces.size_bytes += sge.length;
  }
  return true;
}

constexpr Execution kCopied{Outcome::kDone};

// Whether the peer still accepts this queue pair, as it did when its gate was opened.
bool gate_is_open(const Qp& qp) {
  const uint64_t gate = qp.peer.shared->gate.load(std::memory_order_acquire);
  return gate == qp.peer.gate_sending || gate == qp.peer.gate_ready;
}

// Copies what is long, or goes through the kernel, part by part; `copy(at, bytes)` does one. In
// between the peer may take the memory away, or end the connection: as with a RNIC, the message
// then ends in the middle.
template <typename Copy>
Execution copy_in_parts(Qp& qp, uint64_t stamp, uint32_t size_bytes, Copy&& copy) {
  const RegionEntry& entry = qp.peer.regions[region_index(static_cast<uint32_t>(stamp))];
  for (uint32_t at = 0; at < size_bytes;) {
    const uint32_t part = std::min(size_bytes - at, kCopyAtOnceBytes);
    if (!copy(at, part)) return failed(IBV_WC_REM_OP_ERR);
    at += part;
    Flight::renew(qp);
    if (!gate_is_open(qp)) return {Outcome::kWaitPeer};
    if (entry.stamp.load(std::memory_order_acquire) != stamp) return failed(IBV_WC_REM_ACCESS_ERR);
  }
  return kCopied;
}

// To or from one piece.
[[gnu::noinline, gnu::cold]] Execution write_in_parts(Qp& qp, const RegionView& view,
                                                      uint64_t offset, const Piece& piece) {
  return copy_in_parts(qp, view.stamp, piece.size_bytes, [&](uint32_t at, uint32_t part) {
    const std::byte* source = piece.bytes + at;
    if (view.base == nullptr) {
      return qp.peer.process->write_foreign(view.address + offset + at, source, part);
    }
    copy_last_byte_last(view.base + offset + at, source, part);
    return true;
  });
}

[[gnu::noinline, gnu::cold]] Execution read_in_parts(Qp& qp, const RegionView& view,
                                                     uint64_t offset, const Piece& piece) {
  return copy_in_parts(qp, view.stamp, piece.size_bytes, [&](uint32_t at, uint32_t part) {
    std::byte* target = piece.bytes + at;
    if (view.base == nullptr) {
      return qp.peer.process->read_foreign(view.address + offset + at, target, part);
    }
    memcpy(target, view.base + offset + at, part);
    return true;
  });
}

// To or from all pieces.
using CopyPiece = Execution (*)(Qp&, const RegionView&, uint64_t offset, const Piece&);
[[gnu::noinline, gnu::cold]] Execution copy_all(CopyPiece copy, Qp& qp, const RegionView& view,
                                                uint64_t offset, const Pieces& pieces) {
  Execution copied = kCopied;
  for (uint32_t i = 0; i < pieces.count && copied.outcome == Outcome::kDone; ++i) {
    copied = copy(qp, view, offset, pieces.list[i]);
    offset += pieces.list[i].size_bytes;
  }
  return copied;
}

// Writes all pieces to consecutive bytes of the peer, the last byte last.
void write_peer(const RegionView& view, uint64_t offset, const Pieces& pieces) {
  std::byte* at = view.base + offset;
  for (uint32_t i = 0; i + 1 < pieces.count; ++i) {
    copy_bytes(at, pieces.list[i].bytes, pieces.list[i].size_bytes);
    at += pieces.list[i].size_bytes;
  }
  const Piece& last = pieces.list[pieces.count - 1];
  copy_last_byte_last(at, last.bytes, last.size_bytes);
}

void read_peer(const RegionView& view, uint64_t offset, const Pieces& pieces) {
  const std::byte* at = view.base + offset;
  for (uint32_t i = 0; i < pieces.count; ++i) {
    copy_bytes(pieces.list[i].bytes, at, pieces.list[i].size_bytes);
    at += pieces.list[i].size_bytes;
  }
}

// The peer's receive that this message meets.
struct Taken {
  const SharedReceive* receive;
  uint16_t index;  // in a shared receive queue
};

// Takes the head of the peer's shared receive queue. False if it is empty.
bool take_shared_receive(Qp& qp, Taken& taken) {
  PeerQp& peer = qp.peer;
  // Each round that fails is another taker's success. Whoever has so little luck, or a broken peer,
  // tries again later.
  for (uint32_t round = 0; round <= peer.srq_ring_mask + 16; ++round) {
    uint64_t position = peer.srq->head.load(std::memory_order_acquire);
    if (position == peer.srq->tail.load(std::memory_order_acquire)) return false;
    const uint64_t entry =
        peer.srq_ring[position & peer.srq_ring_mask].load(std::memory_order_acquire);
    const auto index = static_cast<uint16_t>(entry);
    if (entry >> 16 != (position & ~0ull >> 16) || index >= peer.srq_receive_count) {
      // Overwritten by a later lap, so the head has moved on; a head that stays means a broken
      // peer: wait for it.
      if (peer.srq->head.load(std::memory_order_acquire) == position) return false;
      continue;
    }
    auto* receive = reinterpret_cast<SharedReceive*>(peer.srq_receives +
                                                     index * size_t{peer.srq_receive_stride_bytes});
    uint64_t unclaimed = make_claim(position, 0);
    const bool won = receive->claim.compare_exchange_strong(
        unclaimed, make_claim(position, qp.verbs.qp_num), std::memory_order_acq_rel);
    // Whoever won, the entry is gone: help the head on, so that a winner that dies here holds
    // nobody up.
    peer.srq->head.compare_exchange_strong(position, position + 1, std::memory_order_acq_rel);
    if (won) {
      taken = {receive, index};
      return true;
    }
  }
  return false;
}

// Whether the peer's next receive is there; refreshes what is known of its queue.
bool have_credit(PeerQp& peer) {
  if (peer.next_receive != peer.known_receives) [[likely]]
    return true;
  const uint64_t credits = peer.shared->credits.load(std::memory_order_acquire);
  peer.known_receives = static_cast<uint32_t>(credits);
  peer.shortest_receive = static_cast<uint32_t>(credits >> 32);
  return peer.next_receive != peer.known_receives;
}

// Only with a shared receive queue can a queue pair have more packets under way than it has room
// for.
bool have_packet_room(PeerQp& peer) {
  if (peer.next_packet - peer.known_consumed <= peer.packet_mask) [[likely]]
    return true;
  peer.known_consumed = peer.shared->consumed.load(std::memory_order_acquire);
  return peer.next_packet - peer.known_consumed <= peer.packet_mask;
}

void publish_packet(Qp& qp, Packet& packet, uint8_t kind, uint16_t receive_index,
                    uint32_t byte_count, uint32_t immediate, uint32_t inline_bytes) {
  PeerQp& peer = qp.peer;
  packet.byte_count = byte_count;
  packet.immediate = immediate;
  packet.receive_index = receive_index;
  packet.kind = kind;
  packet.inline_bytes = static_cast<uint8_t>(inline_bytes);
  // Release: a receiver that sees the mark sees the packet, and the data that was placed before it.
  packet.mark.store(++peer.next_packet, std::memory_order_release);
  ++peer.next_receive;
  if (peer.bell != kNoBell) {
    peer.cq->bells[peer.bell / 64].fetch_or(1ull << (peer.bell % 64), std::memory_order_acq_rel);
  }
  if (peer.has_channel) {
    // Store-load: either we see the queue armed, or its owner, who arms and then polls, sees the
    // packet.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (peer.cq->armed.load(std::memory_order_relaxed) != 0) {
      ring_peer_channel(*peer.process, *peer.cq, (kind & kPacketSolicited) != 0);
    }
  }
}

uint8_t packet_kind(PacketKind kind, const ibv_send_wr& wr, bool with_immediate) {
  return static_cast<uint8_t>(kind | (with_immediate ? kPacketWithImmediate : 0) |
                              ((wr.send_flags & IBV_SEND_SOLICITED) != 0 ? kPacketSolicited : 0));
}

// Places a payload into the buffers of a taken receive.
Execution scatter(Qp& qp, const SharedReceive& receive, const Pieces& pieces) {
  PeerQp& peer = qp.peer;
  const uint32_t stride =
      peer.srq != nullptr ? peer.srq_receive_stride_bytes : peer.receive_stride_bytes;
  const uint32_t sge_limit =
      static_cast<uint32_t>((stride - offsetof(SharedReceive, sges)) / sizeof(SharedSge));
  const uint32_t sge_count = load_relaxed(&receive.sge_count);
  uint32_t piece = 0;
  uint32_t piece_offset = 0;
  uint32_t left = pieces.size_bytes;
  for (uint32_t i = 0; i < sge_count && i < sge_limit && left > 0; ++i) {
    const SharedSge& sge = receive.sges[i];
    const uint32_t take = std::min(load_relaxed(&sge.length_bytes), left);
    if (take == 0) continue;
    const uint64_t address = load_relaxed(&sge.address);
    const RegionView* view = peer_region(qp, address, take, load_relaxed(&sge.lkey),
                                         IBV_ACCESS_LOCAL_WRITE, peer.receive_domain);
    if (view == nullptr) return failed(IBV_WC_REM_OP_ERR);
    uint64_t offset = address - view->iova;
    for (uint32_t done = 0; done < take;) {
      const Piece& source = pieces.list[piece];
      const uint32_t part = std::min(take - done, source.size_bytes - piece_offset);
      std::byte* bytes = source.bytes + piece_offset;
      if (part <= view->at_once_bytes) [[likely]] {
        copy_bytes(view->base + offset, bytes, part);
      } else if (const Execution written = write_in_parts(qp, *view, offset, {bytes, part});
                 written.outcome != Outcome::kDone) {
        return written.outcome == Outcome::kError ? failed(IBV_WC_REM_OP_ERR) : written;
      }
      offset += part;
      done += part;
      piece_offset += part;
      if (piece_offset == source.size_bytes) {
        ++piece;
        piece_offset = 0;
      }
    }
    left -= take;
  }
  return left == 0 ? kCopied : failed(IBV_WC_REM_INV_REQ_ERR);
}

Execution execute_send(Qp& qp, const ibv_send_wr& wr) {
  Pieces pieces;
  if (!collect(qp, wr, 0, pieces)) return failed(IBV_WC_LOC_PROT_ERR);
  PeerQp& peer = qp.peer;
  const uint32_t size_bytes = pieces.size_bytes;
  const bool with_immediate = wr.opcode == IBV_WR_SEND_WITH_IMM;
  uint8_t kind = packet_kind(kPacketSend, wr, with_immediate);
  ibv_wc_status status = IBV_WC_SUCCESS;
  Taken taken{nullptr, 0};
  if (peer.srq != nullptr) {
    if (!have_packet_room(peer) || !take_shared_receive(qp, taken)) return {Outcome::kWaitReceiver};
  } else {
    if (!have_credit(peer)) return {Outcome::kWaitReceiver};
    if (size_bytes > peer.shortest_receive || size_bytes > kPacketInlineBytes) {
      taken.receive = reinterpret_cast<const SharedReceive*>(
          peer.receives +
          (peer.next_receive & peer.receive_mask) * size_t{peer.receive_stride_bytes});
    }
  }
  uint32_t inline_bytes = size_bytes <= kPacketInlineBytes ? size_bytes : 0;
  if (taken.receive != nullptr) {
    const uint32_t length_bytes = load_relaxed(&taken.receive->length_bytes);
    if (length_bytes == kReceiveInvalid) {
      status = IBV_WC_REM_OP_ERR;
    } else if (size_bytes > length_bytes) {
      status = IBV_WC_REM_INV_REQ_ERR;
    } else if (inline_bytes == 0 && size_bytes > 0) {
      const Execution scattered = scatter(qp, *taken.receive, pieces);
      if (scattered.outcome == Outcome::kWaitPeer) return scattered;
      status = scattered.status;
    }
    if (status != IBV_WC_SUCCESS) {
      // Errors wake those too who wait for solicited arrivals only.
      kind = kPacketSolicited |
             (status == IBV_WC_REM_OP_ERR ? kPacketProtectionError : kPacketLengthError);
      inline_bytes = 0;
    }
  }
  Packet& packet = peer.packets[peer.next_packet & peer.packet_mask];
  if (inline_bytes > 0) {
    std::byte* at = packet.payload;
    for (uint32_t i = 0; i < pieces.count; ++i) {
      copy_small(at, pieces.list[i].bytes, pieces.list[i].size_bytes);
      at += pieces.list[i].size_bytes;
    }
  }
  publish_packet(qp, packet, kind, taken.index, size_bytes, wr.imm_data, inline_bytes);
  return status == IBV_WC_SUCCESS ? Execution{Outcome::kDone, status, size_bytes} : failed(status);
}

// Whether the immediate of a WRITE can be told; takes a shared receive.
bool take_receive(Qp& qp, Taken& taken) {
  if (qp.peer.srq == nullptr) return have_credit(qp.peer);
  return have_packet_room(qp.peer) && take_shared_receive(qp, taken);
}

// The receive that an immediate has met completes with the error.
Execution refuse_immediate(Qp& qp, const Taken& taken, ibv_wc_status status) {
  Packet& packet = qp.peer.packets[qp.peer.next_packet & qp.peer.packet_mask];
  publish_packet(qp, packet, static_cast<uint8_t>(kPacketAccessError | kPacketSolicited),
                 taken.index, 0, 0, 0);
  return failed(status);
}

// As by a RNIC, which takes the receive of an immediate before it looks at the key.
Execution refuse_write(Qp& qp, const ibv_send_wr& wr) {
  Taken taken{nullptr, 0};
  if (wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM && take_receive(qp, taken))
    return refuse_immediate(qp, taken, IBV_WC_REM_ACCESS_ERR);
  return failed(IBV_WC_REM_ACCESS_ERR);
}

Execution execute_write(Qp& qp, const ibv_send_wr& wr) {
  Pieces pieces;
  if (!collect(qp, wr, 0, pieces)) return failed(IBV_WC_LOC_PROT_ERR);
  PeerQp& peer = qp.peer;
  const RegionView* view = nullptr;
  const uint64_t address = wr.wr.rdma.remote_addr;
  if ((peer.shared->access.load(std::memory_order_relaxed) & IBV_ACCESS_REMOTE_WRITE) == 0)
    return refuse_write(qp, wr);
  if (pieces.size_bytes > 0) {
    view = peer_region(qp, address, pieces.size_bytes, wr.wr.rdma.rkey, IBV_ACCESS_REMOTE_WRITE,
                       peer.domain);
    if (view == nullptr) return refuse_write(qp, wr);
  }
  const bool with_immediate = wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  Taken taken{nullptr, 0};
  if (with_immediate && !take_receive(qp, taken)) return {Outcome::kWaitReceiver};
  if (view != nullptr) {
    const uint64_t offset = address - view->iova;
    if (pieces.size_bytes <= view->at_once_bytes) [[likely]] {
      write_peer(*view, offset, pieces);
    } else if (const Execution written = copy_all(write_in_parts, qp, *view, offset, pieces);
               written.outcome != Outcome::kDone) {
      return with_immediate && written.outcome == Outcome::kError
                 ? refuse_immediate(qp, taken, written.status)
                 : written;
    }
  }
  if (with_immediate) {
    Packet& packet = peer.packets[peer.next_packet & peer.packet_mask];
    publish_packet(qp, packet, packet_kind(kPacketWrite, wr, true), taken.index, pieces.size_bytes,
                   wr.imm_data, 0);
  }
  return {Outcome::kDone, IBV_WC_SUCCESS, pieces.size_bytes};
}

Execution execute_read(Qp& qp, const ibv_send_wr& wr) {
  Pieces pieces;
  if (!collect(qp, wr, IBV_ACCESS_LOCAL_WRITE, pieces)) return failed(IBV_WC_LOC_PROT_ERR);
  if ((qp.peer.shared->access.load(std::memory_order_relaxed) & IBV_ACCESS_REMOTE_READ) == 0)
    return failed(IBV_WC_REM_ACCESS_ERR);
  if (pieces.size_bytes > 0) {
    const uint64_t address = wr.wr.rdma.remote_addr;
    const RegionView* view = peer_region(qp, address, pieces.size_bytes, wr.wr.rdma.rkey,
                                         IBV_ACCESS_REMOTE_READ, qp.peer.domain);
    if (view == nullptr) return failed(IBV_WC_REM_ACCESS_ERR);
    const uint64_t offset = address - view->iova;
    if (pieces.size_bytes <= view->at_once_bytes) [[likely]] {
      read_peer(*view, offset, pieces);
    } else if (const Execution read = copy_all(read_in_parts, qp, *view, offset, pieces);
               read.outcome != Outcome::kDone) {
      return read;
    }
  }
  return {Outcome::kDone, IBV_WC_SUCCESS, pieces.size_bytes};
}

Execution execute_atomic(Qp& qp, const ibv_send_wr& wr) {
  Pieces pieces;
  if (!collect(qp, wr, IBV_ACCESS_LOCAL_WRITE, pieces)) return failed(IBV_WC_LOC_PROT_ERR);
  if (pieces.size_bytes != sizeof(uint64_t)) return failed(IBV_WC_LOC_LEN_ERR);
  const uint64_t address = wr.wr.atomic.remote_addr;
  if (address % sizeof(uint64_t) != 0) return failed(IBV_WC_REM_INV_REQ_ERR);
  if ((qp.peer.shared->access.load(std::memory_order_relaxed) & IBV_ACCESS_REMOTE_ATOMIC) == 0)
    return failed(IBV_WC_REM_ACCESS_ERR);
  const RegionView* view = peer_region(qp, address, sizeof(uint64_t), wr.wr.atomic.rkey,
                                       IBV_ACCESS_REMOTE_ATOMIC, qp.peer.domain);
  if (view == nullptr) return failed(IBV_WC_REM_ACCESS_ERR);
  const uint64_t start =
      view->base != nullptr ? reinterpret_cast<uint64_t>(view->base) : view->address;
  const uint64_t place = start + (address - view->iova);
  if (place % sizeof(uint64_t) != 0) return failed(IBV_WC_REM_INV_REQ_ERR);
  auto* target = reinterpret_cast<uint64_t*>(place);
  uint64_t before;
  if (view->base == nullptr) [[unlikely]] {
    const Peer::Update update =
        view->locked_atomics
            ? qp.peer.process->update_foreign(place, wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP,
                                              wr.wr.atomic.compare_add, wr.wr.atomic.swap, &before)
            : Peer::Update::kRefused;
    if (update == Peer::Update::kBusy) return {Outcome::kWaitPeer};
    if (update == Peer::Update::kRefused) return failed(IBV_WC_REM_OP_ERR);
  } else if (wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
    before = __atomic_fetch_add(target, wr.wr.atomic.compare_add, __ATOMIC_ACQ_REL);
  } else {
    before = wr.wr.atomic.compare_add;
    __atomic_compare_exchange_n(target, &before, wr.wr.atomic.swap, false, __ATOMIC_ACQ_REL,
                                __ATOMIC_ACQUIRE);
  }
  const auto* source = reinterpret_cast<const std::byte*>(&before);
  for (uint32_t i = 0; i < pieces.count; ++i) {
    copy_small(pieces.list[i].bytes, source, pieces.list[i].size_bytes);
    source += pieces.list[i].size_bytes;
  }
  return {Outcome::kDone, IBV_WC_SUCCESS, sizeof(uint64_t)};
}

ibv_wc_opcode completion_opcode(ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      return IBV_WC_RDMA_WRITE;
    case IBV_WR_RDMA_READ:
      return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      return IBV_WC_COMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return IBV_WC_FETCH_ADD;
    default:
      return IBV_WC_SEND;
  }
}

// What the responder's side learns of an initiator's error. A SEND that does not fit has told it by
// its packet.
void blame_for(Qp& qp, const ibv_send_wr& wr, ibv_wc_status status) {
  const bool send = completion_opcode(wr.opcode) == IBV_WC_SEND;
  if (status == IBV_WC_REM_ACCESS_ERR) blame_peer(qp, IBV_EVENT_QP_ACCESS_ERR);
  if (status == IBV_WC_REM_INV_REQ_ERR && !send) blame_peer(qp, IBV_EVENT_QP_REQ_ERR);
}

Execution execute_verb(Qp& qp, const ibv_send_wr& wr) {
  switch (wr.opcode) {
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
      return execute_send(qp, wr);
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      return execute_write(qp, wr);
    case IBV_WR_RDMA_READ:
      return execute_read(qp, wr);
    default:
      return execute_atomic(qp, wr);
  }
}

// Whether the peer accepts this queue pair, on the first operation: from then on the gate's two
// open values are known. A peer that changes its life afterwards knows nothing of what was sent,
// and an own life after another one's operations would go on in the middle of them; both stay shut.
bool open_gate(Qp& qp, uint64_t gate) {
  PeerQp& peer = qp.peer;
  if (peer.gate_ready != kNoGate) return false;
  const auto life = static_cast<uint32_t>(gate >> 32);
  const uint64_t ready = make_gate(life, qp.verbs.qp_num, IBV_QPS_RTR);
  const uint64_t sending = make_gate(life, qp.verbs.qp_num, IBV_QPS_RTS);
  if (gate != ready && gate != sending) return false;
  uint32_t sender_life = 0;
  if (!peer.shared->sender_life.compare_exchange_strong(sender_life, qp.life) &&
      sender_life != qp.life)
    return false;
  peer.gate_ready = ready;
  peer.gate_sending = sending;
  return true;
}

bool acceptable(const Qp& qp, const ibv_send_wr& wr) {
  if (wr.num_sge < 0 || static_cast<uint32_t>(wr.num_sge) > qp.init.cap.max_send_sge) return false;
  uint64_t size_bytes = 0;
  for (int i = 0; i < wr.num_sge; ++i) size_bytes += wr.sg_list[i].length;
  const bool is_inline = (wr.send_flags & IBV_SEND_INLINE) != 0;
  switch (wr.opcode) {
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      break;
    case IBV_WR_RDMA_READ:
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      if (is_inline || qp.attributes.max_rd_atomic == 0) return false;
      break;
    default:
      return false;
  }
  return size_bytes <= kMaxMessageBytes && !(is_inline && size_bytes > qp.init.cap.max_inline_data);
}

int post_one(Qp& qp, const ibv_send_wr& wr) {
  const ibv_qp_state state = qp.state.load(std::memory_order_relaxed);
  if (state != IBV_QPS_RTS && state != IBV_QPS_ERR) [[unlikely]]
    return EINVAL;
  if (qp.send_posted - qp.send_retired.load(std::memory_order_acquire) >= qp.send_depth)
      [[unlikely]] {
    return ENOMEM;
  }
  if (!acceptable(qp, wr)) [[unlikely]]
    return EINVAL;
  const uint32_t position = ++qp.send_posted;
  if (state == IBV_QPS_ERR) [[unlikely]] {
    complete_send(qp, wr, position, failed(std::exchange(qp.next_flush, IBV_WC_WR_FLUSH_ERR)));
    return 0;
  }
  // Posting leads the retries of those that wait, so that one who only posts makes progress too.
  if (qp.waiting_count.load(std::memory_order_relaxed) > 0) [[unlikely]] {
    return enqueue_waiting(qp, wr, position, Wait::kNothing);
  }
  const Execution execution = execute(qp, wr);
  if (execution.outcome == Outcome::kDone || execution.outcome == Outcome::kError) [[likely]] {
    finish_send(qp, wr, position, execution);
    return 0;
  }
  return enqueue_waiting(
      qp, wr, position,
      execution.outcome == Outcome::kWaitReceiver ? Wait::kReceiver : Wait::kPeer);
}

}  // namespace

Execution execute(Qp& qp, const ibv_send_wr& wr) {
  const Flight flight(qp);
  if (qp.peer.shared == nullptr) [[unlikely]]
    return {Outcome::kWaitPeer};
  const uint64_t gate = qp.peer.shared->gate.load(std::memory_order_acquire);
  if (gate != qp.peer.gate_sending && gate != qp.peer.gate_ready && !open_gate(qp, gate))
      [[unlikely]] {
    return {Outcome::kWaitPeer};
  }
  const Execution execution = execute_verb(qp, wr);
  // While the flight lasts, the peer's queue pair is there to be told.
  if (execution.outcome == Outcome::kError) [[unlikely]]
    blame_for(qp, wr, execution.status);
  return execution;
}

void complete_send(Qp& qp, const ibv_send_wr& wr, uint32_t position, const Execution& execution) {
  const bool signaled = (wr.send_flags & IBV_SEND_SIGNALED) != 0 || qp.init.sq_sig_all != 0 ||
                        execution.status != IBV_WC_SUCCESS;
  if (!signaled) return;
  const bool kept = push_completion(*qp.send_cq, {.wr_id = wr.wr_id,
                                                  .qp = &qp,
                                                  .status = execution.status,
                                                  .opcode = completion_opcode(wr.opcode),
                                                  .byte_count = execution.size_bytes,
                                                  .send_position = position});
  if (!kept && qp.state.load(std::memory_order_relaxed) == IBV_QPS_RTS) {
    fail_queue_pair_locked(qp, IBV_WC_WR_FLUSH_ERR, IBV_EVENT_QP_FATAL);
  }
}

void finish_send(Qp& qp, const ibv_send_wr& wr, uint32_t position, const Execution& execution) {
  complete_send(qp, wr, position, execution);
  if (execution.outcome == Outcome::kError) [[unlikely]] {
    fail_queue_pair_locked(qp, IBV_WC_WR_FLUSH_ERR, kNoEvent);
  }
}

int post_send(ibv_qp* verbs, ibv_send_wr* wr, ibv_send_wr** bad) {
  Qp& qp = as_qp(verbs);
  const OwnerLock::Guard guard(qp.send_lock);
  for (; wr != nullptr; wr = wr->next) {
    if (const int error = post_one(qp, *wr); error != 0) [[unlikely]] {
      *bad = wr;
      return error;
    }
  }
  return 0;
}

}  // namespace verbena::soft
