// Unreliable connections: as reliable ones, but nobody answers. What does not get through, for
// whatever reason on the other side, vanishes, and its sender completes with success.
#pragma once

#include "src/device/soft/objects.h"

namespace verbena::soft {

inline bool uc_accepts(const ibv_send_wr& wr) {
  return wr.opcode == IBV_WR_SEND || wr.opcode == IBV_WR_SEND_WITH_IMM ||
         wr.opcode == IBV_WR_RDMA_WRITE || wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

// Carries out what was posted at `position`. Holds send_lock.
void uc_post(Qp& qp, const ibv_send_wr& wr, uint32_t position);

}  // namespace verbena::soft
