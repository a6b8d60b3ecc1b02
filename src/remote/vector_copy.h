// What the CPU does for vector IO by VectorMethod::kSp: puts pieces together, and apart.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <span>

#include "verbena/data_path.h"

namespace verbena::remote {

// Copies the pieces one behind the other to `to`.
inline void gather(std::span<const ibv_sge> pieces, char* to) {
  char* next = to;
  for (const ibv_sge& piece : pieces) {
    copy_bytes(next, reinterpret_cast<const void*>(piece.addr), piece.length);
    next += piece.length;
  }
}

// Copies what lies one behind the other at `from` to the pieces.
inline void scatter(const char* from, std::span<const ibv_sge> pieces) {
  const char* next = from;
  for (const ibv_sge& piece : pieces) {
    copy_bytes(reinterpret_cast<void*>(piece.addr), next, piece.length);
    next += piece.length;
  }
}

}  // namespace verbena::remote
