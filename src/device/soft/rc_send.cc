// The work requests of a reliable connection: the initiator's thread carries them out, here and
// now.
//
// A WRITE, READ or atomic is done on the peer's memory as mapped here. A SEND takes the peer's next
// receive: up to kPacketInlineBytes the payload travels in the packet, and the receiver's poll puts
// it into the receive buffer (which nobody may read before); more is placed there directly, and the
// packet only tells. What cannot be done yet (no receive posted, peer not ready) waits at the head
// of the queue, see rc_retry.cc.
#include "src/base/shared_memory.h"
#include "src/device/soft/copy.h"
#include "src/device/soft/flight.h"
#include "src/device/soft/peer_receives.h"
#include "src/device/soft/rc.h"
#include "src/device/soft/rc_target.h"
#include "src/device/soft/windows.h"
#include "src/device/soft/xrc.h"

namespace verbena::soft {
namespace {

constexpr Execution failed(ibv_wc_status status) { return {Outcome::kError, status, 0}; }

// Of a copy that did not end well.
[[gnu::cold]] Execution ended_with(Copy copied) {
  switch (copied) {
    case Copy::kShut:
      return {Outcome::kWaitPeer};
    case Copy::kRevoked:
      return failed(IBV_WC_REM_ACCESS_ERR);
    case Copy::kNotHere:
      return failed(IBV_WC_LOC_PROT_ERR);
    default:
      return failed(IBV_WC_REM_OP_ERR);
  }
}

uint8_t packet_kind(PacketKind kind, const ibv_send_wr& wr, bool with_immediate) {
  return static_cast<uint8_t>(kind | (with_immediate ? kPacketWithImmediate : 0) |
                              ((wr.send_flags & IBV_SEND_SOLICITED) != 0 ? kPacketSolicited : 0));
}

// Of a receive that is there; a shared one was taken.
Execution send_to_receive(Qp& qp, const ibv_send_wr& wr, const Pieces& pieces, uint64_t ended,
                          Taken taken) {
  PeerQp& peer = qp.peer;
  const uint32_t size_bytes = pieces.size_bytes;
  uint8_t kind = packet_kind(kPacketSend, wr, wr.opcode == IBV_WR_SEND_WITH_IMM);
  ibv_wc_status status = IBV_WC_SUCCESS;
  if (peer.srq.shared == nullptr &&
      (size_bytes > peer.receives.shortest_bytes || size_bytes > kPacketInlineBytes)) {
    taken.receive = &peer.receives.receive(peer.receives.next);
  }
  uint32_t inline_bytes = size_bytes <= kPacketInlineBytes ? size_bytes : 0;
  if (taken.receive != nullptr) {
    const uint32_t length_bytes = load_relaxed(&taken.receive->length_bytes);
    if (length_bytes == kReceiveInvalid) {
      status = IBV_WC_REM_OP_ERR;
    } else if (size_bytes > length_bytes) {
      status = IBV_WC_REM_INV_REQ_ERR;
    } else if (inline_bytes == 0 && size_bytes > 0) {
      RequestMemory own(qp, wr, pieces, ended);
      const Copy scattered = scatter(qp, *taken.receive, pieces, own);
      if (scattered == Copy::kShut || scattered == Copy::kNotHere) {
        abandon_receive(qp, taken);
        return ended_with(scattered);
      }
      status = scattered == Copy::kDone     ? IBV_WC_SUCCESS
               : scattered == Copy::kMisfit ? IBV_WC_REM_INV_REQ_ERR
                                            : IBV_WC_REM_OP_ERR;
    }
    if (status != IBV_WC_SUCCESS) {
      // Errors wake those too who wait for solicited arrivals only.
      kind = kPacketSolicited |
             (status == IBV_WC_REM_OP_ERR ? kPacketProtectionError : kPacketLengthError);
      inline_bytes = 0;
    }
  }
  if (wr.opcode == IBV_WR_SEND_WITH_INV && status == IBV_WC_SUCCESS) [[unlikely]] {
    kind |= kPacketWithInvalidate;
    if (!invalidate_at_peer(qp, wr.invalidate_rkey)) {
      status = IBV_WC_REM_ACCESS_ERR;
      kind = kPacketSolicited | kPacketProtectionError;
      inline_bytes = 0;
    }
  }
  if (inline_bytes > 0) {
    std::byte* at = next_packet(peer, taken).payload;
    for (uint32_t i = 0; i < pieces.count; ++i) {
      copy_small(at, pieces.list[i].bytes, pieces.list[i].size_bytes);
      at += pieces.list[i].size_bytes;
    }
  }
  if (!publish_packet(qp, kind, taken, size_bytes, wr.imm_data, inline_bytes)) [[unlikely]]
    return failed(IBV_WC_REM_OP_ERR);
  return status == IBV_WC_SUCCESS ? Execution{Outcome::kDone, status, size_bytes} : failed(status);
}

Execution execute_send(Qp& qp, const ibv_send_wr& wr) {
  const uint64_t ended = qp.rnic->regions().ended();
  Pieces pieces;
  if (!collect(qp, wr, 0, pieces)) return failed(IBV_WC_LOC_PROT_ERR);
  Taken taken;
  if (!take_receive(qp, taken)) return {Outcome::kWaitReceiver};
  return send_to_receive(qp, wr, pieces, ended, taken);
}

// The receive that an immediate has met completes with the error.
Execution refuse_immediate(Qp& qp, const Taken& taken, ibv_wc_status status) {
  publish_packet(qp, static_cast<uint8_t>(kPacketAccessError | kPacketSolicited), taken, 0, 0, 0);
  return failed(status);
}

// As by an RNIC, which takes the receive of an immediate before it checks the key.
[[gnu::noinline, gnu::cold]] Execution refuse_write(Qp& qp, const ibv_send_wr& wr) {
  Taken taken;
  if (is_reliable(qp.transport) && wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM &&
      take_receive(qp, taken))
    return refuse_immediate(qp, taken, IBV_WC_REM_ACCESS_ERR);
  return failed(IBV_WC_REM_ACCESS_ERR);
}

// What its sender itself is to blame for is not told to the receiver, as with an RNIC.
[[gnu::noinline, gnu::cold]] Execution end_write_early(Qp& qp, Copy copied, bool with_immediate,
                                                       const Taken& taken) {
  const Execution execution = ended_with(copied);
  if (!with_immediate) return execution;
  if (execution.outcome() == Outcome::kError && copied != Copy::kNotHere)
    return refuse_immediate(qp, taken, execution.status());
  abandon_receive(qp, taken);
  return execution;
}

Execution execute_write(Qp& qp, const ibv_send_wr& wr) {
  const uint64_t ended = qp.rnic->regions().ended();
  Pieces pieces;
  if (!collect(qp, wr, 0, pieces)) return failed(IBV_WC_LOC_PROT_ERR);
  if (!allows(qp, IBV_ACCESS_REMOTE_WRITE)) return refuse_write(qp, wr);
  const RegionView* view = nullptr;
  if (pieces.size_bytes > 0) {
    view = target_of(qp, wr, pieces.size_bytes, IBV_ACCESS_REMOTE_WRITE);
    if (view == nullptr) return refuse_write(qp, wr);
  }
  const bool with_immediate = wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  Taken taken;
  if (with_immediate && !take_receive(qp, taken)) return {Outcome::kWaitReceiver};
  if (view != nullptr) {
    const uint64_t offset = wr.wr.rdma.remote_addr - view->iova;
    if (pieces.size_bytes <= view->at_once_bytes) [[likely]] {
      write_peer(qp.peer.copy_choice, *view, offset, pieces);
      prefetch_next(qp.peer, *view, wr.wr.rdma.remote_addr, pieces.size_bytes);
    } else {
      RequestMemory own(qp, wr, pieces, ended);
      const Copy copied = write_peer_in_parts(qp, *view, offset, pieces, own);
      if (copied != Copy::kDone) return end_write_early(qp, copied, with_immediate, taken);
    }
  }
  if (with_immediate && !publish_packet(qp, packet_kind(kPacketWrite, wr, true), taken,
                                        pieces.size_bytes, wr.imm_data, 0)) [[unlikely]] {
    return failed(IBV_WC_REM_OP_ERR);
  }
  return {Outcome::kDone, IBV_WC_SUCCESS, pieces.size_bytes};
}

// Of one whose own memory is not as it says, which shows when the response comes: the responder's
// error comes before that.
[[gnu::noinline, gnu::cold]] Execution refuse_read(Qp& qp, const ibv_send_wr& wr) {
  uint32_t size_bytes = 0;
  for (int i = 0; i < wr.num_sge; ++i) size_bytes += wr.sg_list[i].length;
  const bool granted = allows(qp, IBV_ACCESS_REMOTE_READ) &&
                       target_of(qp, wr, size_bytes, IBV_ACCESS_REMOTE_READ) != nullptr;
  return failed(granted ? IBV_WC_LOC_PROT_ERR : IBV_WC_REM_ACCESS_ERR);
}

Execution execute_read(Qp& qp, const ibv_send_wr& wr) {
  const uint64_t ended = qp.rnic->regions().ended();
  Pieces pieces;
  if (!collect_target(qp, wr, pieces)) return refuse_read(qp, wr);
  if (!allows(qp, IBV_ACCESS_REMOTE_READ)) return failed(IBV_WC_REM_ACCESS_ERR);
  if (pieces.size_bytes > 0) {
    const RegionView* view = target_of(qp, wr, pieces.size_bytes, IBV_ACCESS_REMOTE_READ);
    if (view == nullptr) return failed(IBV_WC_REM_ACCESS_ERR);
    const uint64_t offset = wr.wr.rdma.remote_addr - view->iova;
    // The kernel finds out by itself, and brings new pages in as it copies.
    if (view->base != nullptr && !is_target_there(pieces)) return failed(IBV_WC_LOC_PROT_ERR);
    if (pieces.size_bytes <= view->at_once_bytes) [[likely]] {
      read_peer(*view, offset, pieces);
    } else {
      RequestMemory own(qp, wr, pieces, ended);
      const Copy copied = read_peer_in_parts(qp, *view, offset, pieces, own);
      if (copied == Copy::kRefused && !is_target_there(pieces)) return failed(IBV_WC_LOC_PROT_ERR);
      if (copied != Copy::kDone) return ended_with(copied);
    }
  }
  return {Outcome::kDone, IBV_WC_SUCCESS, pieces.size_bytes};
}

// The word of an atomic's peer.
struct RemoteWord {
  const RegionView* view;
  uint64_t place;  // here, or in the peer's process where the view has no base
  ibv_wc_status status;
};

RemoteWord remote_word(Qp& qp, const ibv_send_wr& wr, uint32_t access) {
  const auto refused = [](ibv_wc_status status) { return RemoteWord{nullptr, 0, status}; };
  const uint64_t address = wr.wr.atomic.remote_addr;
  if (address % sizeof(uint64_t) != 0) return refused(IBV_WC_REM_INV_REQ_ERR);
  if (!allows(qp, access)) return refused(IBV_WC_REM_ACCESS_ERR);
  const RegionView* view =
      peer_region(qp, address, sizeof(uint64_t), wr.wr.atomic.rkey, access, qp.peer.domain);
  if (view == nullptr) return refused(IBV_WC_REM_ACCESS_ERR);
  const uint64_t start =
      view->base != nullptr ? reinterpret_cast<uint64_t>(view->base) : view->address;
  const uint64_t place = start + (address - view->iova);
  if (place % sizeof(uint64_t) != 0) return refused(IBV_WC_REM_INV_REQ_ERR);
  return {view, place, IBV_WC_SUCCESS};
}

// On memory that is reached through the kernel, as one of the atomics there.
Outcome write_foreign_word(Qp& qp, const RemoteWord& word, uint64_t value) {
  if (!word.view->locked_atomics) return Outcome::kError;
  // Each round that fails is another process's success.
  constexpr int kRounds = 64;
  uint64_t expected = 0;
  for (int round = 0; round < kRounds; ++round) {
    uint64_t found = 0;
    const Peer::Update update =
        qp.peer.memory->update_foreign(word.place, true, expected, value, &found);
    if (update == Peer::Update::kBusy) return Outcome::kWaitPeer;
    if (update == Peer::Update::kRefused) return Outcome::kError;
    if (found == expected) return Outcome::kDone;
    expected = found;
  }
  return Outcome::kWaitPeer;
}

[[gnu::noinline]] Execution execute_atomic_write(Qp& qp, const ibv_send_wr& wr) {
  const RemoteWord word = remote_word(qp, wr, IBV_ACCESS_REMOTE_WRITE);
  if (word.view == nullptr) return failed(word.status);
  const uint64_t value = wr.wr.atomic.compare_add;
  if (word.view->base != nullptr) {
    __atomic_store_n(reinterpret_cast<uint64_t*>(word.place), value, __ATOMIC_RELEASE);
  } else if (const Outcome outcome = write_foreign_word(qp, word, value);
             outcome != Outcome::kDone) {
    return outcome == Outcome::kError ? failed(IBV_WC_REM_OP_ERR) : Execution{outcome};
  }
  return {Outcome::kDone, IBV_WC_SUCCESS, sizeof(value)};
}

// `before`: what the word held.
Execution update_word(Qp& qp, const ibv_send_wr& wr, uint64_t& before) {
  const auto [view, place, status] = remote_word(qp, wr, IBV_ACCESS_REMOTE_ATOMIC);
  if (view == nullptr) return failed(status);
  auto* target = reinterpret_cast<uint64_t*>(place);
  if (view->base == nullptr) [[unlikely]] {
    const Peer::Update update =
        view->locked_atomics
            ? qp.peer.memory->update_foreign(place, wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP,
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
  return {Outcome::kDone, IBV_WC_SUCCESS, sizeof(uint64_t)};
}

Execution execute_atomic(Qp& qp, const ibv_send_wr& wr) {
  Pieces pieces;
  const bool has_target = collect(qp, wr, IBV_ACCESS_LOCAL_WRITE, pieces);
  if (has_target && pieces.size_bytes != sizeof(uint64_t)) return failed(IBV_WC_LOC_LEN_ERR);
  uint64_t before = 0;
  const Execution execution = update_word(qp, wr, before);
  if (execution.outcome() != Outcome::kDone) return execution;
  // As with an RNIC, the word has changed when the response does not find its place.
  if (!has_target) return failed(IBV_WC_LOC_PROT_ERR);
  const auto* source = reinterpret_cast<const std::byte*>(&before);
  for (uint32_t i = 0; i < pieces.count; ++i) {
    copy_small(pieces.list[i].bytes, source, pieces.list[i].size_bytes);
    source += pieces.list[i].size_bytes;
  }
  return execution;
}

Execution execute_verb(Qp& qp, const ibv_send_wr& wr) {
  switch (wr.opcode) {
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
    case IBV_WR_SEND_WITH_INV:
      return execute_send(qp, wr);
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      return execute_write(qp, wr);
    case IBV_WR_RDMA_READ:
      return execute_read(qp, wr);
    case kAtomicWrite:
      return execute_atomic_write(qp, wr);
    default:
      return execute_atomic(qp, wr);
  }
}

// What the responder's side learns of an initiator's error. A SEND that does not fit has told it by
// its packet.
[[gnu::noinline, gnu::cold]] void blame_for(Qp& qp, const ibv_send_wr& wr, ibv_wc_status status) {
  const bool send = wr.opcode == IBV_WR_SEND || wr.opcode == IBV_WR_SEND_WITH_IMM ||
                    wr.opcode == IBV_WR_SEND_WITH_INV;
  // By XRC, no packet tells the receiving queue pair.
  if (qp.transport == Transport::kXrcSend && status == IBV_WC_REM_OP_ERR)
    blame_peer(qp, IBV_EVENT_QP_FATAL);
  if (qp.transport == Transport::kXrcSend && send && status == IBV_WC_REM_INV_REQ_ERR)
    blame_peer(qp, IBV_EVENT_QP_REQ_ERR);
  if (status == IBV_WC_REM_ACCESS_ERR) blame_peer(qp, IBV_EVENT_QP_ACCESS_ERR);
  if (status == IBV_WC_REM_INV_REQ_ERR && !send) blame_peer(qp, IBV_EVENT_QP_REQ_ERR);
}

[[gnu::noinline, gnu::cold]] void fail_after_request(Qp& qp) {
  ++qp.counters->errors;
  fail_queue_pair_locked(qp, IBV_WC_WR_FLUSH_ERR, kNoEvent);
}

}  // namespace

Execution execute_unblamed(Qp& qp, const ibv_send_wr& wr) {
  if (qp.peer.shared == nullptr) [[unlikely]]
    return {Outcome::kWaitPeer};
  if (!qp.peer.accepts() && !open_gate(qp)) [[unlikely]]
    return {Outcome::kWaitPeer};
  if (qp.transport == Transport::kXrcSend) [[unlikely]] {
    const ibv_wc_status aimed = aim(qp, wr.qp_type.xrc.remote_srqn);
    if (aimed != IBV_WC_SUCCESS) [[unlikely]]
      return failed(aimed);
  }
  return execute_verb(qp, wr);
}

Execution execute(Qp& qp, const ibv_send_wr& wr) {
  if (is_window_request(wr.opcode)) [[unlikely]] {
    const ibv_wc_status status = carried_out_status(wr);
    return {status == IBV_WC_SUCCESS ? Outcome::kDone : Outcome::kError, status};
  }
  const Flight flight(qp);
  const Execution execution = execute_unblamed(qp, wr);
  // While the flight lasts, the peer's queue pair is there to be told.
  if (execution.outcome() == Outcome::kError) [[unlikely]]
    blame_for(qp, wr, execution.status());
  return execution;
}

void finish_send(Qp& qp, const ibv_send_wr& wr, uint32_t position, Execution execution) {
  qp.counters->bytes += execution.size_bytes();
  complete_send(qp, wr, position, execution.status(), execution.size_bytes());
  if (execution.outcome() == Outcome::kError) [[unlikely]]
    fail_after_request(qp);
}

void rc_post_taken(Qp& qp, const ibv_send_wr& wr, const Taken& taken) {
  const uint32_t position = ++qp.send_posted;
  ++qp.counters->requests[wr.opcode];
  const uint64_t ended = qp.rnic->regions().ended();
  Pieces pieces;
  const Execution execution = collect(qp, wr, 0, pieces)
                                  ? send_to_receive(qp, wr, pieces, ended, taken)
                                  : failed(IBV_WC_LOC_PROT_ERR);
  // A broken peer may say now that there is room.
  if (execution.outcome() == Outcome::kError) blame_for(qp, wr, execution.status());
  finish_send(qp, wr, position, execution);
}

void rc_post(Qp& qp, const ibv_send_wr& wr, uint32_t position) {
  // Posting leads the retries of those that wait, so that one who only posts makes progress too.
  if (!qp.waiting.empty()) [[unlikely]]
    return enqueue_waiting(qp, wr, position, Outcome::kWaitPeer);
  const Execution execution = execute(qp, wr);
  if (execution.outcome() == Outcome::kDone || execution.outcome() == Outcome::kError) [[likely]] {
    return finish_send(qp, wr, position, execution);
  }
  enqueue_waiting(qp, wr, position, execution.outcome());
}

}  // namespace verbena::soft
