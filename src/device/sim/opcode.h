// Kinds of work requests, as far as they are treated alike.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

namespace verbena::sim {

inline constexpr uint32_t kAtomicBytes = 8;

inline bool is_send(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM;
}
inline bool is_atomic(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}
// Whose WQE says where the peer's memory is.
inline bool is_rdma(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_WRITE_WITH_IMM ||
         opcode == IBV_WR_RDMA_READ;
}
// Whose response brings data to the requester, instead of an acknowledgement.
inline bool asks_for_data(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_RDMA_READ || is_atomic(opcode);
}

}  // namespace verbena::sim
