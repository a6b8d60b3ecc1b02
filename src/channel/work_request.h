// Work requests that are filled in once per slot; per message only size and flags change
// (descriptor reuse, "mpiiba" 4.3).
#pragma once

#include <arpa/inet.h>
#include <infiniband/verbs.h>

#include <cstdint>
#include <vector>

namespace verbena::channel {

struct SlotRequest {
  ibv_send_wr request{};
  ibv_sge payload{};

  SlotRequest() = default;
  // The request points into its own object.
  SlotRequest(const SlotRequest&) = delete;
  SlotRequest& operator=(const SlotRequest&) = delete;
};

// One request per slot, at a fixed address.
using SlotRequests = std::vector<SlotRequest>;

inline void set_send(SlotRequest& slot, uint64_t address, uint32_t lkey, uint32_t immediate) {
  slot.payload = {.addr = address, .length = 0, .lkey = lkey};
  slot.request.sg_list = &slot.payload;
  slot.request.num_sge = 1;
  slot.request.opcode = IBV_WR_SEND_WITH_IMM;
  slot.request.imm_data = htonl(immediate);
}

inline void set_write(SlotRequest& slot, uint64_t address, uint32_t lkey, uint64_t remote_address,
                      uint32_t rkey) {
  slot.payload = {.addr = address, .length = 0, .lkey = lkey};
  slot.request.sg_list = &slot.payload;
  slot.request.num_sge = 1;
  slot.request.opcode = IBV_WR_RDMA_WRITE;
  slot.request.wr.rdma.remote_addr = remote_address;
  slot.request.wr.rdma.rkey = rkey;
}

inline void set_write_with_immediate(SlotRequest& slot, uint64_t address, uint32_t lkey,
                                     uint64_t remote_address, uint32_t rkey, uint32_t immediate) {
  set_write(slot, address, lkey, remote_address, rkey);
  slot.request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  slot.request.imm_data = htonl(immediate);
}

inline void set_read(SlotRequest& slot, uint64_t address, uint32_t lkey, uint32_t rkey,
                     uint64_t wr_id) {
  set_write(slot, address, lkey, 0, rkey);
  slot.request.opcode = IBV_WR_RDMA_READ;
  slot.request.wr_id = wr_id;
}

// The size of this message. Inline up to the limit: the device then need not fetch the payload.
inline void set_size(SlotRequest& slot, uint32_t bytes, uint32_t inline_limit_bytes) {
  slot.payload.length = bytes;
  slot.request.send_flags = bytes <= inline_limit_bytes ? IBV_SEND_INLINE : 0;
}

// The same where `bytes` may be 0: some devices take an SGE of length 0 for 2^31 bytes.
inline void set_size_or_empty(SlotRequest& slot, uint32_t bytes, uint32_t inline_limit_bytes) {
  set_size(slot, bytes, inline_limit_bytes);
  slot.request.num_sge = bytes != 0 ? 1 : 0;
}

// What the immediate of a message says: which of the receiver's connections, and which slot.
struct MessageImmediate {
  uint32_t connection;
  uint32_t slot;

  static constexpr uint32_t kSlotBits = 16;
  uint32_t immediate() const { return connection << kSlotBits | slot; }
  static MessageImmediate from_completion(const ibv_wc& completion) {
    const uint32_t immediate = ntohl(completion.imm_data);
    return {immediate >> kSlotBits, immediate & ((1u << kSlotBits) - 1)};
  }
};

}  // namespace verbena::channel
