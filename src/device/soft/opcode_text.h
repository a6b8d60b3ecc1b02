// Work requests by the names that programs know them by.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <iterator>

#include "src/device/soft/atomic_write.h"

namespace verbena::soft {

inline const char* opcode_text(ibv_wr_opcode opcode) {
  constexpr const char* kNames[] = {
      "RDMA_WRITE",         "RDMA_WRITE_WITH_IMM",  "SEND",      "SEND_WITH_IMM", "RDMA_READ",
      "ATOMIC_CMP_AND_SWP", "ATOMIC_FETCH_AND_ADD", "LOCAL_INV", "BIND_MW",       "SEND_WITH_INV"};
  if (opcode == kAtomicWrite) return "ATOMIC_WRITE";
  return static_cast<size_t>(opcode) < std::size(kNames) ? kNames[opcode] : "an unknown opcode";
}

}  // namespace verbena::soft
