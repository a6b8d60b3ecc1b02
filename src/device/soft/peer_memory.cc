#include "src/device/soft/peer_memory.h"

#include <algorithm>
#include <cstring>

#include "src/device/soft/flight.h"

namespace verbena::soft {
namespace {

// `copy(at, bytes)` does one part; false if the kernel refuses.
template <typename CopyPart>
Copy copy_in_parts(Qp& qp, uint64_t stamp, uint32_t size_bytes, CopyPart&& copy) {
  const RegionEntry& entry = qp.peer.regions[region_index(static_cast<uint32_t>(stamp))];
  for (uint32_t at = 0; at < size_bytes;) {
    const uint32_t part = std::min(size_bytes - at, kCopyAtOnceBytes);
    if (!copy(at, part)) return Copy::kRefused;
    at += part;
    Flight::renew(qp);
    if (!qp.peer.accepts() || !qp.peer.srq.is_there()) return Copy::kShut;
    // Acquire: a later generation of the region's entry is not mixed up with this one.
    if (entry.stamp.load(std::memory_order_acquire) != stamp) return Copy::kRevoked;
  }
  return Copy::kDone;
}

Copy read_piece_in_parts(Qp& qp, const RegionView& view, uint64_t offset, const Piece& piece) {
  return copy_in_parts(qp, view.stamp, piece.size_bytes, [&](uint32_t at, uint32_t part) {
    std::byte* target = piece.bytes + at;
    if (view.base == nullptr) {
      return qp.peer.memory->read_foreign(view.address + offset + at, target, part);
    }
    memcpy(target, view.base + offset + at, part);
    return true;
  });
}

using CopyPiece = Copy (*)(Qp&, const RegionView&, uint64_t offset, const Piece&);
Copy copy_all(CopyPiece copy, Qp& qp, const RegionView& view, uint64_t offset,
              const Pieces& pieces) {
  Copy copied = Copy::kDone;
  for (uint32_t i = 0; i < pieces.count && copied == Copy::kDone; ++i) {
    copied = copy(qp, view, offset, pieces.list[i]);
    offset += pieces.list[i].size_bytes;
  }
  return copied;
}

}  // namespace

Copy write_piece_in_parts(Qp& qp, const RegionView& view, uint64_t offset, const Piece& piece) {
  return copy_in_parts(qp, view.stamp, piece.size_bytes, [&](uint32_t at, uint32_t part) {
    const std::byte* source = piece.bytes + at;
    if (view.base == nullptr) {
      return qp.peer.memory->write_foreign(view.address + offset + at, source, part);
    }
    copy_last_byte_last(view.base + offset + at, source, part);
    return true;
  });
}

Copy write_peer_in_parts(Qp& qp, const RegionView& view, uint64_t offset, const Pieces& pieces) {
  return copy_all(write_piece_in_parts, qp, view, offset, pieces);
}

Copy read_peer_in_parts(Qp& qp, const RegionView& view, uint64_t offset, const Pieces& pieces) {
  return copy_all(read_piece_in_parts, qp, view, offset, pieces);
}

}  // namespace verbena::soft
