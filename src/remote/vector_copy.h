// What the CPU does for vector IO by VectorMethod::kSp: puts pieces together, and apart.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <cstring>
#include <span>

#include "src/base/virtual_time.h"

namespace verbena::remote {

// Copies the pieces one behind the other to `to`.
inline void gather(std::span<const ibv_sge> pieces, char* to) {
  char* next = to;
  for (const ibv_sge& piece : pieces) {
    std::memcpy(next, reinterpret_cast<const void*>(piece.addr), piece.length);
    next += piece.length;
  }
  note_bytes(static_cast<uint64_t>(next - to));
}

// Copies what lies one behind the other at `from` to the pieces.
inline void scatter(const char* from, std::span<const ibv_sge> pieces) {
  const char* next = from;
  for (const ibv_sge& piece : pieces) {
    std::memcpy(reinterpret_cast<void*>(piece.addr), next, piece.length);
    next += piece.length;
  }
  note_bytes(static_cast<uint64_t>(next - from));
}

}  // namespace verbena::remote
