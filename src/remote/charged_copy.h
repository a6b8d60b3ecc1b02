// Copies on the data path, which a simulation charges.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <cstring>
#include <span>

#include "src/base/virtual_time.h"

namespace verbena::remote {

inline void copy(char* to, const char* from, uint64_t bytes) {
  if (bytes == 0) return;  // the pointers may be null then
  std::memcpy(to, from, bytes);
  note_bytes(bytes);
}

// What the CPU does for vector IO by VectorMethod::kSp: puts pieces together, one behind the other
// at `to`, and apart.
inline void gather(std::span<const ibv_sge> pieces, char* to) {
  for (const ibv_sge& piece : pieces) {
    copy(to, reinterpret_cast<const char*>(piece.addr), piece.length);
    to += piece.length;
  }
}
inline void scatter(const char* from, std::span<const ibv_sge> pieces) {
  for (const ibv_sge& piece : pieces) {
    copy(reinterpret_cast<char*>(piece.addr), from, piece.length);
    from += piece.length;
  }
}

}  // namespace verbena::remote
