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
};

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

}  // namespace verbena::soft
