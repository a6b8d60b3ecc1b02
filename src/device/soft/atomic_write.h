// ATOMIC WRITE: eight bytes that land at once. Headers of libibverbs before release 43 do not have
// it; what a program builds with newer ones has these values.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

namespace verbena::soft {

inline constexpr auto kAtomicWrite = static_cast<ibv_wr_opcode>(15);
inline constexpr auto kAtomicWriteDone = static_cast<ibv_wc_opcode>(9);
inline constexpr uint64_t kAtomicWriteBytes = 8;
inline constexpr uint64_t kAtomicWriteCapability = 1ull << 40;  // of a device

// Whether programs can post it: by ibv_wr_start() only, which has the value in the request.
template <typename Extended>
concept HasAtomicWrite = requires(Extended& qp) {
  qp.wr_atomic_write;
};
inline constexpr uint64_t kAtomicWriteOperation = HasAtomicWrite<ibv_qp_ex> ? 1ull << 12 : 0;

// The request has no SGEs; the value is the operand that other atomics add.
inline void make_atomic_write(ibv_send_wr& wr, uint32_t rkey, uint64_t address, uint64_t value) {
  wr.wr.atomic = {.remote_addr = address, .compare_add = value, .swap = 0, .rkey = rkey};
}

}  // namespace verbena::soft
