// The short way of the requests that most are: WRITEs of one piece, and SENDs that travel in their
// packet. All that is checked elsewhere, in one place and in the order in which it decides.
#include <algorithm>
#include <cstddef>
#include <span>

#include "src/device/soft/control.h"
#include "src/device/soft/flight.h"
#include "src/device/soft/gather_list.h"
#include "src/device/soft/peer_memory.h"
#include "src/device/soft/peer_receives.h"
#include "src/device/soft/rc.h"
#include "src/device/soft/rc_target.h"

namespace verbena::soft {
namespace {

constexpr unsigned kUsualFlags = IBV_SEND_INLINE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED;

// Both return how many bytes they have sent; 0: it is the general way's to decide. kEnded: the
// request was posted and has ended with an error.
constexpr uint32_t kEnded = ~0u;

inline uint32_t write_at_once(Qp& qp, const ibv_send_wr& wr, bool is_inline) {
  const ibv_sge& sge = wr.sg_list[0];
  const uint32_t size_bytes = sge.length;
  if (wr.num_sge != 1 || size_bytes == 0) return 0;
  // at_once_bytes is more than any inline limit, and less than any message's.
  if (is_inline && size_bytes > qp.init.cap.max_inline_data) return 0;
  const Flight flight(qp);
  const std::byte* const source = source_of(qp, sge, is_inline);
  if (source == nullptr) return 0;
  if (!qp.peer.accepts() || !allows(qp, IBV_ACCESS_REMOTE_WRITE)) return 0;
  const RegionView* const view = target_of(qp, wr, size_bytes, IBV_ACCESS_REMOTE_WRITE);
  if (view == nullptr || size_bytes > view->at_once_bytes) return 0;
  const uint64_t address = wr.wr.rdma.remote_addr;
  std::byte* const at = view->base + (address - view->iova);
  write_part(qp.peer.copy_choice, at, source, size_bytes);
  prefetch_next(qp.peer, *view, address, size_bytes);
  return size_bytes;
}

inline uint32_t send_at_once(Qp& qp, const ibv_send_wr& wr, bool is_inline) {
  PeerQp& peer = qp.peer;
  if (peer.srq.xrc != nullptr) return 0;
  const bool takes_shared = peer.srq.shared != nullptr;
  const Flight flight(qp);
  if (!peer.accepts() || !(takes_shared ? have_packet_room(peer) : have_credit(peer))) return 0;
  uint32_t room_bytes = takes_shared ? kPacketInlineBytes
                                     : std::min(kPacketInlineBytes, peer.receives.shortest_bytes);
  if (is_inline) room_bytes = std::min(room_bytes, qp.init.cap.max_inline_data);
  // Nobody reads the packet before it is published: what was begun here may be given up.
  Taken taken;
  std::byte* at = next_packet(peer, taken).payload;
  uint32_t size_bytes = 0;
  for (const ibv_sge& sge : std::span(wr.sg_list, static_cast<size_t>(wr.num_sge))) {
    if (sge.length == 0 || sge.length > room_bytes - size_bytes) return 0;
    const std::byte* const source = source_of(qp, sge, is_inline);
    if (source == nullptr) return 0;
    copy_small(at + size_bytes, source, sge.length);
    size_bytes += sge.length;
  }
  if (size_bytes == 0) return 0;
  if (takes_shared) {
    if (!take_shared_receive(peer.srq, peer.claim_number, taken)) return 0;
    if (!has_room(*taken.receive, size_bytes)) [[unlikely]] {
      rc_post_taken(qp, wr, taken);
      return kEnded;
    }
  }
  const bool solicited = (wr.send_flags & IBV_SEND_SOLICITED) != 0;
  publish_packet(qp, static_cast<uint8_t>(kPacketSend | (solicited ? kPacketSolicited : 0)), taken,
                 size_bytes, 0, size_bytes);
  return size_bytes;
}

}  // namespace

bool rc_post_at_once(Qp& qp, const ibv_send_wr& wr) {
  if ((wr.opcode != IBV_WR_RDMA_WRITE && wr.opcode != IBV_WR_SEND) ||
      (wr.send_flags & ~kUsualFlags) != 0 || wr.num_sge <= 0 ||
      static_cast<uint32_t>(wr.num_sge) > qp.init.cap.max_send_sge || !qp.waiting.empty() ||
      qp.peer.shared == nullptr) [[unlikely]] {
    return false;
  }
  const bool is_inline = (wr.send_flags & IBV_SEND_INLINE) != 0;
  const uint32_t size_bytes =
      wr.opcode == IBV_WR_SEND ? send_at_once(qp, wr, is_inline) : write_at_once(qp, wr, is_inline);
  if (size_bytes == 0) return false;
  if (size_bytes == kEnded) [[unlikely]]
    return true;
  const uint32_t position = ++qp.send_posted;
  ++qp.counters->requests[wr.opcode];
  qp.counters->bytes += size_bytes;
  if ((wr.send_flags & IBV_SEND_SIGNALED) != 0 || qp.init.sq_sig_all != 0)
    complete_send(qp, wr, position, IBV_WC_SUCCESS, size_bytes);
  return true;
}

namespace {

bool write_now(ibv_qp* verbs, const void* bytes, uint32_t size_bytes, uint64_t remote_address,
               uint32_t rkey, uint64_t next_address) {
  VERBENA_DEBUG_ASSERT(size_bytes > 0 && size_bytes % 8 == 0);
  Qp& qp = as_qp(verbs);
  const OwnerLock::Guard guard(qp.send_lock);
  if (qp.state.load(std::memory_order_relaxed) != IBV_QPS_RTS || !qp.waiting.empty() ||
      qp.peer.shared == nullptr) [[unlikely]] {
    return false;
  }
  const Flight flight(qp);
  if (!qp.peer.accepts() || !allows(qp, IBV_ACCESS_REMOTE_WRITE)) return false;
  const RegionView* const view =
      peer_region(qp, remote_address, size_bytes, rkey, IBV_ACCESS_REMOTE_WRITE, qp.peer.domain);
  if (view == nullptr || size_bytes > view->at_once_bytes) return false;
  std::byte* const at = view->base + (remote_address - view->iova);
  if (reinterpret_cast<uintptr_t>(at) % 8 != 0) return false;
  const auto* const source = static_cast<const std::byte*>(bytes);
  if (size_bytes <= CopyChoice::kShortBytes) {
    copy_last_word_last(at, source, size_bytes, false);
    prefetch_at(*view, next_address, size_bytes);
  } else {
    qp.peer.copy_choice.copy(at, size_bytes, [=](bool streams) {
      copy_last_word_last(at, source, size_bytes, streams);
    });
  }
  ++qp.counters->requests[IBV_WR_RDMA_WRITE];
  qp.counters->bytes += size_bytes;
  return true;
}

}  // namespace

WriteNow write_now_of(const ibv_qp* verbs) {
  // Faults, observers and checks see what is posted.
  const bool is_bare = verbs->context->ops.post_send == post_send;
  return is_bare && as_qp(const_cast<ibv_qp*>(verbs)).transport == Transport::kReliable ? write_now
                                                                                        : nullptr;
}

}  // namespace verbena::soft
