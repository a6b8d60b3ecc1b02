// The memory of the peer that a WRITE or READ names. Holds send_lock, within a Flight.
#pragma once

#include "src/device/soft/copy.h"
#include "src/device/soft/region_view.h"

namespace verbena::soft {

// Whether the peer's queue pair lets this one do that to its memory (ibv_access_flags).
inline bool allows(const Qp& qp, uint32_t access) {
  return (qp.peer.shared->access.load(std::memory_order_relaxed) & access) != 0;
}

// The region of a WRITE or READ; null also without bytes.
inline const RegionView* target_of(Qp& qp, const ibv_send_wr& wr, uint32_t size_bytes,
                                   uint32_t access) {
  return peer_region(qp, wr.wr.rdma.remote_addr, size_bytes, wr.wr.rdma.rkey, access,
                     qp.peer.domain);
}

// Of messages that are longer the lines come together in any case.
inline constexpr uint32_t kMostForeseenBytes = 1024;

inline void prefetch_at(const RegionView& view, uint64_t address, uint32_t size_bytes) {
  const uint64_t offset = address - view.iova;
  if (offset >= view.length_bytes || size_bytes > view.length_bytes - offset ||
      size_bytes > kMostForeseenBytes) {
    return;
  }
  prefetch_for_write(view.base + offset, size_bytes);
}

inline void prefetch_next(PeerQp& peer, const RegionView& view, uint64_t address,
                          uint32_t size_bytes) {
  const uint64_t next = peer.write_stride.foresee(address);
  if (next != WriteStride::kNone) prefetch_at(view, next, size_bytes);
}

}  // namespace verbena::soft
