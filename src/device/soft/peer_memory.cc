#include "src/device/soft/peer_memory.h"

#include <algorithm>
#include <cstring>

#include "src/device/soft/flight.h"

namespace verbena::soft {
namespace {

// `copy(at, bytes)` does one part.
template <typename CopyPart>
Copy copy_in_parts(Qp& qp, uint64_t stamp, uint32_t size_bytes, CopyPart&& copy) {
  const RegionEntry& entry = qp.peer.regions[region_index(static_cast<uint32_t>(stamp))];
  for (uint32_t at = 0; at < size_bytes;) {
    const uint32_t part = std::min(size_bytes - at, kCopyAtOnceBytes);
    if (const Copy copied = copy(at, part); copied != Copy::kDone) return copied;
    at += part;
    Flight::renew(qp);
    if (!qp.peer.accepts() || !qp.peer.srq.is_there()) return Copy::kShut;
    // Acquire: a later generation of the region's entry is not mixed up with this one.
    if (entry.stamp.load(std::memory_order_acquire) != stamp) return Copy::kRevoked;
  }
  return Copy::kDone;
}

Copy read_piece_in_parts(Qp& qp, const RegionView& view, uint64_t offset, const Piece& piece,
                         RequestMemory& own) {
  return copy_in_parts(qp, view.stamp, piece.size_bytes, [&](uint32_t at, uint32_t part) {
    if (!own.is_there()) return Copy::kNotHere;
    std::byte* const to = piece.bytes + at;
    if (view.base == nullptr) {
      switch (qp.peer.memory->read_foreign(view.address + offset + at, to, part)) {
        case Peer::Read::kDone:
          return Copy::kDone;
        case Peer::Read::kRefused:
          return Copy::kRefused;
        case Peer::Read::kBusy:
        case Peer::Read::kGone:
          return Copy::kShut;  // it is tried again later, as a whole
      }
    }
    copy_bytes(to, view.base + offset + at, part);
    return Copy::kDone;
  });
}

}  // namespace

bool RequestMemory::collects_the_same() const {
  Pieces again;
  const bool collected = wr_.opcode == IBV_WR_RDMA_READ ? collect_target(qp_, wr_, again)
                                                        : collect(qp_, wr_, 0, again);
  return collected &&
         std::equal(pieces_.list, pieces_.list + pieces_.count, again.list,
                    [](const Piece& one, const Piece& other) { return one.bytes == other.bytes; });
}

Copy write_piece_in_parts(Qp& qp, const RegionView& view, uint64_t offset, const Piece& piece,
                          RequestMemory& own) {
  return copy_in_parts(qp, view.stamp, piece.size_bytes, [&](uint32_t at, uint32_t part) {
    if (!own.is_there()) return Copy::kNotHere;
    const std::byte* source = piece.bytes + at;
    if (view.base == nullptr) {
      if (qp.peer.memory->write_foreign(view.address + offset + at, source, part))
        return Copy::kDone;
      return qp.peer.memory->has_ended() ? Copy::kShut : Copy::kRefused;
    }
    write_part(qp.peer.copy_choice, view.base + offset + at, source, part);
    return Copy::kDone;
  });
}

Copy write_peer_in_parts(Qp& qp, const RegionView& view, uint64_t offset, const Pieces& pieces,
                         RequestMemory& own) {
  Copy copied = Copy::kDone;
  for (uint32_t i = 0; i < pieces.count && copied == Copy::kDone; ++i) {
    copied = write_piece_in_parts(qp, view, offset, pieces.list[i], own);
    offset += pieces.list[i].size_bytes;
  }
  return copied;
}

Copy read_peer_in_parts(Qp& qp, const RegionView& view, uint64_t offset, const Pieces& pieces,
                        RequestMemory& own) {
  Copy copied = Copy::kDone;
  for (uint32_t i = 0; i < pieces.count && copied == Copy::kDone; ++i) {
    copied = read_piece_in_parts(qp, view, offset, pieces.list[i], own);
    offset += pieces.list[i].size_bytes;
  }
  return copied;
}

}  // namespace verbena::soft
