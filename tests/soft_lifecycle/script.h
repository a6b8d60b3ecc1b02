// What the test tells a member to do, one command at a time, and what the member answers.
#pragma once

#include <infiniband/verbs.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "verbena/device.h"

namespace verbena::soft_lifecycle {

inline constexpr uint32_t kMembers = 3;
inline constexpr uint32_t kQueuePairs = 4;   // of a member
inline constexpr uint32_t kSlots = 16;       // of a queue pair, for sends, and as many for receives
inline constexpr uint32_t kSharedSlots = 8;  // of a member's shared receive queue
inline constexpr uint32_t kSlotBytes = 4096;  // of a message
inline constexpr uint32_t kInlineBytes = 256;

// The arena of a member: memory that peers reach by regions, some of which share pages.
inline constexpr uint64_t kPageBytes = 4096;
inline constexpr uint64_t kArenaBytes = 12 * kPageBytes;
struct Range {
  uint64_t offset;
  uint64_t size_bytes;
  uint64_t end() const { return offset + size_bytes; }
};
inline constexpr uint32_t kRegions = 3;
inline constexpr Range kRegionRanges[kRegions] = {
    {0, 4 * kPageBytes}, {2 * kPageBytes, 4 * kPageBytes}, {5 * kPageBytes + 256, 512}};

enum class Op : uint32_t {
  kMake,           // a queue pair with a completion queue of its own, or on the one of all
  kDestroy,        // both, or it
  kConnect,        // from INIT to `peer`
  kReset,          // to INIT
  kError,          // to ERR
  kAwaitState,     // until it is `state`
  kReceive,        // of `bytes`
  kReceiveShared,  // the same
  kSend,
  kAwait,  // `count` completions, and all that there are
  kArm,    // the completion queue, for an event
  kAwaitEvent,
  kRegister,
  kDeregister,
  kRenew,     // `bytes` of pages at `offset`, of no region: gives them back to the system
  kScribble,  // writes there
  kImage,     // what the arena holds
  kFork,      // a child that stays
  kExec,      // becomes another program
  kLeave,     // ends and destroys nothing
  kClose,     // destroys all, in order, and ends
};

// Numbers of receives are below kSendBit. Their last byte is the slot.
inline constexpr uint64_t kSendBit = uint64_t{1} << 63;
constexpr uint32_t slot_of(uint64_t id) { return static_cast<uint32_t>(id & 0xff); }

struct Command {
  Op op = Op::kImage;
  uint32_t object = 0;  // queue pair or region
  bool shared = false;  // its receives are those of the shared queue
  bool patient = false;
  bool unreliable = false;  // of an unreliable connection
  bool remaps = false;      // kRenew: by munmap() and mmap()
  ibv_qp_state state = IBV_QPS_ERR;
  uint64_t id = 0;
  ibv_wr_opcode opcode = IBV_WR_SEND;
  unsigned flags = 0;  // ibv_send_flags
  uint32_t bytes = 0;
  uint64_t seed = 0;  // of what is sent or written
  uint64_t offset = 0;
  uint64_t remote = 0;
  uint32_t rkey = 0;
  uint64_t add = 0;
  uint32_t count = 0;
  QueuePairAddress peer = {};
};

inline constexpr uint64_t kHashOfNothing = 0xcbf29ce484222325u;
inline uint64_t hash_of(const std::byte* bytes, size_t size_bytes) {
  uint64_t hash = kHashOfNothing;
  for (size_t i = 0; i < size_bytes; ++i) {
    hash = (hash ^ static_cast<uint64_t>(bytes[i])) * 0x100000001b3u;
  }
  return hash;
}

// A completion.
struct Found {
  uint32_t object = 0;  // queue pair
  uint64_t id = 0;
  ibv_wc_status status = IBV_WC_SUCCESS;
  uint32_t bytes = 0;
  uint64_t hash = kHashOfNothing;  // of what was received or read
};

struct Answer {
  static constexpr uint32_t kMost = 128;

  int error = 0;
  QueuePairAddress address = {};
  uint64_t arena = 0;  // where it begins
  uint32_t key = 0;
  pid_t pid = 0;
  uint64_t hash = 0;
  uint32_t count = 0;
  Found found[kMost] = {};
};

}  // namespace verbena::soft_lifecycle
