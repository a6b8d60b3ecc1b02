#include "src/device/soft/peer_receives.h"

#include <algorithm>
#include <cstddef>

#include "src/base/shared_memory.h"

namespace verbena::soft {
namespace {

// How often a sender looks for a place in an XRC queue that has none, and at all: a broken owner
// may move the next place on forever.
constexpr uint32_t kMaxStalledRounds = 64;
constexpr uint32_t kMaxRounds = 1u << 24;

[[gnu::cold, gnu::noinline]] bool is_null_region_of_peer(const PeerQp& peer, uint32_t key) {
  const uint32_t index = region_index(key);
  return index < kMaxMemoryRegions && is_null_region(peer.regions[index], key, peer.receive_domain);
}

// The owner wrote its line when it posted it: it comes while the next message is not there yet.
void prefetch_receive(const PeerSrq& srq, uint64_t position) {
  const uint64_t entry = srq.ring[position & srq.ring_mask].load(std::memory_order_relaxed);
  const auto index = static_cast<uint16_t>(entry);
  if (entry >> 16 != (position & ~0ull >> 16) || index >= srq.receive_count) return;
  prefetch_for_write(reinterpret_cast<std::byte*>(&srq.receive(index)), sizeof(SharedReceive));
}

}  // namespace

bool take_shared_receive(PeerSrq& srq, uint32_t mark, Taken& taken) {
  // Each round that fails is another taker's success. Whoever has so little luck, or a broken peer,
  // tries again later.
  for (uint32_t round = 0; round <= srq.ring_mask + 16; ++round) {
    uint64_t position = srq.shared->head.load(std::memory_order_acquire);
    if (static_cast<int64_t>(srq.known_tail - position) <= 0) {
      // Acquire: the receives before the tail are visible.
      srq.known_tail = srq.shared->tail.load(std::memory_order_acquire);
      if (static_cast<int64_t>(srq.known_tail - position) <= 0) return false;
    }
    const uint64_t entry = srq.ring[position & srq.ring_mask].load(std::memory_order_acquire);
    const auto index = static_cast<uint16_t>(entry);
    if (entry >> 16 != (position & ~0ull >> 16) || index >= srq.receive_count) {
      // Overwritten by a later lap, so the head has moved on; a head that stays means a broken
      // peer: wait for it.
      if (srq.shared->head.load(std::memory_order_acquire) == position) return false;
      continue;
    }
    SharedReceive& receive = srq.receive(index);
    uint64_t unclaimed = make_claim(position, 0);
    const bool won = receive.claim.compare_exchange_strong(unclaimed, make_claim(position, mark),
                                                           std::memory_order_acq_rel);
    // Whichever sender won, the WQE is taken: help the head on, so that a winner that dies here
    // holds nobody up.
    srq.shared->head.compare_exchange_strong(position, position + 1, std::memory_order_acq_rel);
    if (won) {
      taken = {&receive, index};
      prefetch_receive(srq, position + 1);
      return true;
    }
  }
  return false;
}

bool publish_to_xrc(Qp& qp, Packet& packet) {
  const PeerSrq& srq = qp.peer.srq;
  packet.mark.store(qp.peer.number, std::memory_order_relaxed);
  // There is a place for each receive, so only a broken owner has none. A round in which the next
  // place moves on is another sender's success.
  uint64_t last = 0;
  for (uint32_t stalled = 0, round = 0; round < kMaxRounds; ++round) {
    uint64_t position = srq.xrc->next.load(std::memory_order_acquire);
    stalled = position == last ? stalled + 1 : 0;
    if (stalled > kMaxStalledRounds) return false;
    last = position;
    std::atomic<uint64_t>& place = srq.arrivals[position & srq.ring_mask];
    uint64_t found = make_free_place(position);
    // Release: the owner that sees the arrival sees the packet, and what was placed before.
    const bool won = place.compare_exchange_strong(
        found, make_arrival(position, packet.receive_index), std::memory_order_acq_rel);
    // Filled, and perhaps free again for a later lap: whoever filled it may have died before this.
    if (won || found >> 16 > position << 1) {
      srq.xrc->next.compare_exchange_strong(position, position + 1, std::memory_order_acq_rel);
    }
    if (won) {
      announce(*qp.peer.memory, qp.peer.cq, (packet.kind & kPacketSolicited) != 0);
      return true;
    }
  }
  return false;
}

void abandon_receive(Qp& qp, const Taken& taken) {
  // That of a queue pair's own, or of its shared queue, is taken back when the queue pair is reset.
  if (qp.peer.srq.xrc == nullptr || !qp.peer.srq.is_there()) return;
  publish_packet(qp, kPacketFlushed | kPacketSolicited, taken, 0, 0, 0);
}

Copy scatter(Qp& qp, const SharedReceive& receive, const Pieces& pieces, RequestMemory& own) {
  PeerQp& peer = qp.peer;
  const uint32_t stride =
      peer.srq.shared != nullptr ? peer.srq.stride_bytes : peer.receives.stride_bytes;
  const uint32_t sge_limit =
      static_cast<uint32_t>((stride - offsetof(SharedReceive, first_sges)) / sizeof(SharedSge));
  const uint32_t sge_count = load_relaxed(&receive.sge_count);
  const SharedSge* const sges = sges_of(receive);
  uint32_t piece = 0;
  uint32_t piece_offset = 0;
  uint32_t left = pieces.size_bytes;
  for (uint32_t i = 0; i < sge_count && i < sge_limit && left > 0; ++i) {
    const SharedSge& sge = sges[i];
    const uint32_t take = std::min(load_relaxed(&sge.length_bytes), left);
    if (take == 0) continue;
    const uint64_t address = load_relaxed(&sge.address);
    const RegionView* view = peer_region(qp, address, take, load_relaxed(&sge.lkey),
                                         IBV_ACCESS_LOCAL_WRITE, peer.receive_domain);
    const bool drops = view == nullptr;
    if (drops && !is_null_region_of_peer(peer, load_relaxed(&sge.lkey))) return Copy::kRefused;
    uint64_t offset = drops ? 0 : address - view->iova;
    for (uint32_t done = 0; done < take;) {
      VERBENA_DEBUG_ASSERT(piece < pieces.count);
      const Piece& source = pieces.list[piece];
      const uint32_t part = std::min(take - done, source.size_bytes - piece_offset);
      std::byte* bytes = source.bytes + piece_offset;
      if (drops) [[unlikely]] {
        // Nobody reads it.
      } else if (part <= view->at_once_bytes) [[likely]] {
        write_part(peer.copy_choice, view->base + offset, bytes, part);
      } else if (const Copy copied = write_piece_in_parts(qp, *view, offset, {bytes, part}, own);
                 copied != Copy::kDone) {
        return copied;
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
  return left == 0 ? Copy::kDone : Copy::kMisfit;
}

}  // namespace verbena::soft
