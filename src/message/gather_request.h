// The work request of a message whose payload lies in the user's memory: its header, and what
// closes it, come from the slot or buffer of the message ("bufreuse" 3.1).
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

namespace verbena::message {

// The payload: registered memory.
struct GatheredBytes {
  const char* bytes = nullptr;
  uint32_t size_bytes = 0;
  uint32_t lkey = 0;
};

// Entries of the longest gather list: head and header, payload, tail.
inline constexpr uint32_t kGatherEntries = 3;

struct GatherRequest {
  ibv_send_wr request{};
  ibv_sge entries[kGatherEntries] = {};

  GatherRequest() = default;
  // The request points into its own object.
  GatherRequest(const GatherRequest&) = delete;
  GatherRequest& operator=(const GatherRequest&) = delete;

  // As `usual`, with the memory that add() names instead of its own.
  void begin(const ibv_send_wr& usual) {
    request = usual;
    request.sg_list = entries;
    request.num_sge = 0;
    request.send_flags = 0;
  }
  void add(const void* bytes, uint32_t size_bytes, uint32_t lkey) {
    entries[request.num_sge++] = {
        .addr = reinterpret_cast<uint64_t>(bytes), .length = size_bytes, .lkey = lkey};
  }
};

}  // namespace verbena::message
