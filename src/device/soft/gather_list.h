// The gather list (or, for READ, scatter list) of a work request, checked.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/base/assert.h"
#include "src/device/soft/region_view.h"

namespace verbena::soft {

struct Piece {
  std::byte* bytes;
  uint32_t size_bytes;
};

struct Pieces {
  Piece list[kMaxSges];
  uint32_t count = 0;
  uint32_t size_bytes = 0;
  uint32_t flags = 0;  // kOwnAddressAccess, kLeftAccess: of some piece, if it was not probed
};

// Where an SGE's bytes are read, of which there are some; null if that is not registered memory, or
// memory that is gone. What is inline is the program's to provide, as with an RNIC's library.
[[gnu::always_inline]] inline const std::byte* source_of(const Qp& qp, const ibv_sge& sge,
                                                         bool is_inline) {
  if (is_inline) [[likely]]
    return reinterpret_cast<const std::byte*>(sge.addr);
  return usable_memory(qp.regions, qp.domain, sge.addr, sge.length, sge.lkey, 0);
}

// False if an SGE is not registered memory with `access`, or is memory that is gone. SGEs without
// bytes are left out. What is inline is the program's to provide, as with an RNIC's library.
[[gnu::always_inline]] inline bool collect(const Qp& qp, const ibv_send_wr& wr, uint32_t access,
                                           Pieces& pieces) {
  for (int i = 0; i < wr.num_sge; ++i) {
    const ibv_sge& sge = wr.sg_list[i];
    if (sge.length == 0) continue;
    std::byte* bytes =
        (wr.send_flags & IBV_SEND_INLINE) != 0
            ? reinterpret_cast<std::byte*>(sge.addr)
            : usable_memory(qp.regions, qp.domain, sge.addr, sge.length, sge.lkey, access);
    if (bytes == nullptr) return false;
    VERBENA_DEBUG_ASSERT(pieces.count < kMaxSges);
    pieces.list[pieces.count++] = {bytes, sge.length};
    pieces.size_bytes += sge.length;
  }
  return true;
}

// The same of the target of a READ, whose memory is not probed yet: see is_target_there().
inline bool collect_target(const Qp& qp, const ibv_send_wr& wr, Pieces& pieces) {
  for (int i = 0; i < wr.num_sge; ++i) {
    const ibv_sge& sge = wr.sg_list[i];
    if (sge.length == 0) continue;
    uint32_t flags = 0;
    std::byte* const bytes = find_own_memory(qp.regions, qp.domain, sge.addr, sge.length, sge.lkey,
                                             IBV_ACCESS_LOCAL_WRITE, flags);
    constexpr uint32_t kProbed = kOwnAddressAccess | kLeftAccess;
    if (bytes == nullptr || (flags & ~kProbed) != IBV_ACCESS_LOCAL_WRITE) return false;
    VERBENA_DEBUG_ASSERT(pieces.count < kMaxSges);
    pieces.list[pieces.count++] = {bytes, sge.length};
    pieces.size_bytes += sge.length;
    pieces.flags |= flags & kProbed;
  }
  return true;
}

// Long targets that were left in place: who uses them has asked whether they can be written
// (region_memory()), and a store to each page would take a tenth of the copy's time.
inline constexpr uint32_t kLoadedTargetBytes = 128 * 1024;

inline bool is_target_there(const Pieces& pieces) {
  if ((pieces.flags & kOwnAddressAccess) == 0) return true;
  for (uint32_t i = 0; i < pieces.count; ++i) {
    const Piece& piece = pieces.list[i];
    const bool loads = (pieces.flags & kLeftAccess) != 0 && piece.size_bytes > kLoadedTargetBytes;
    if (!is_there(piece.bytes, piece.size_bytes, /*writes=*/!loads)) return false;
  }
  return true;
}

}  // namespace verbena::soft
