// Copies between the pieces of a work request and a region of the connected peer. Holds send_lock,
// within a Flight.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/device/soft/copy.h"
#include "src/device/soft/gather_list.h"

namespace verbena::soft {

// How a copy ended. All but the first end in the middle of a message, as with an RNIC.
enum class Copy : uint8_t {
  kDone,
  kShut,     // the peer does not accept this queue pair any more
  kRevoked,  // the region was deregistered
  kRefused,  // the memory is not registered so, or the kernel does not carry it out
  kMisfit,   // there is less room than there was said to be
  kNotHere,  // this side's memory was deregistered
};

// What a gather list writes is prefetched, unless it would push itself out of the nearest cache.
// Not what belongs to long pieces: memcpy() stores their lines as a whole, for which another CPU
// need not send what it has of them.
inline constexpr uint32_t kPrefetchedBytes = 16 * 1024;
inline constexpr uint32_t kPrefetchedPieceBytes = 1536;

// Consecutive bytes of at most RegionView::at_once_bytes, the last byte last.
inline void write_part(CopyChoice& choice, std::byte* destination, const std::byte* source,
                       uint32_t size_bytes) {
  if (size_bytes <= CopyChoice::kShortBytes) {
    return copy_last_byte_last(destination, source, size_bytes, false);
  }
  choice.copy(destination, size_bytes,
              [=](bool streams) { copy_last_byte_last(destination, source, size_bytes, streams); });
}

// The first `count` pieces, one behind the other; returns where they end.
inline std::byte* copy_pieces(std::byte* at, const Pieces& pieces, uint32_t count, bool streams) {
  for (uint32_t i = 0; i < count; ++i) {
    copy_either(at, pieces.list[i].bytes, pieces.list[i].size_bytes, streams);
    at += pieces.list[i].size_bytes;
  }
  return at;
}

inline void write_pieces(std::byte* at, const Pieces& pieces, bool streams) {
  if (pieces.count > 1 && pieces.size_bytes <= kPrefetchedBytes && !streams) {
    std::byte* place = at;
    for (uint32_t i = 0; i < pieces.count; ++i) {
      const uint32_t size_bytes = pieces.list[i].size_bytes;
      if (size_bytes <= kPrefetchedPieceBytes) prefetch_for_write(place, size_bytes);
      place += size_bytes;
    }
  }
  at = copy_pieces(at, pieces, pieces.count - 1, streams);
  const Piece& last = pieces.list[pieces.count - 1];
  copy_last_byte_last(at, last.bytes, last.size_bytes, streams);
}

// Writes all pieces to consecutive bytes of the peer, the last byte last. At most
// RegionView::at_once_bytes.
inline void write_peer(CopyChoice& choice, const RegionView& view, uint64_t offset,
                       const Pieces& pieces) {
  std::byte* const at = view.base + offset;
  if (pieces.size_bytes <= CopyChoice::kShortBytes) return write_pieces(at, pieces, false);
  choice.copy(at, pieces.size_bytes, [&](bool streams) { write_pieces(at, pieces, streams); });
}

inline void read_peer(const RegionView& view, uint64_t offset, const Pieces& pieces) {
  const std::byte* at = view.base + offset;
  for (uint32_t i = 0; i < pieces.count; ++i) {
    copy_bytes(pieces.list[i].bytes, at, pieces.list[i].size_bytes);
    at += pieces.list[i].size_bytes;
  }
}

// This side's memory of a request, which other threads may deregister between its parts.
class RequestMemory {
 public:
  // `pieces` were collected of `wr`; `ended` is of before that (RegionTable::ended()): where that
  // has changed, they are collected again. All outlive it.
  RequestMemory(const Qp& qp, const ibv_send_wr& wr, const Pieces& pieces, uint64_t ended)
      : qp_(qp), wr_(wr), pieces_(pieces), ended_(ended) {}
  // Within a flight: which it stays for that flight.
  bool is_there() {
    const uint64_t ended = qp_.rnic->regions().ended();
    if (ended == ended_) [[likely]]
      return true;
    ended_ = ended;
    return collects_the_same();
  }

 private:
  // A key may name other memory by now (rereg_mr()).
  bool collects_the_same() const;

  const Qp& qp_;
  const ibv_send_wr& wr_;
  const Pieces& pieces_;
  uint64_t ended_;
};

// The same for what is longer, or goes through the kernel: part by part. In between the peer may
// take the memory away, or end the connection.
Copy write_peer_in_parts(Qp& qp, const RegionView& view, uint64_t offset, const Pieces& pieces,
                         RequestMemory& own);
Copy read_peer_in_parts(Qp& qp, const RegionView& view, uint64_t offset, const Pieces& pieces,
                        RequestMemory& own);
Copy write_piece_in_parts(Qp& qp, const RegionView& view, uint64_t offset, const Piece& piece,
                          RequestMemory& own);

}  // namespace verbena::soft
