// What soft0 tells those who watch it, in any process of the user.
#pragma once

#include <cstdint>

namespace verbena::soft {

// Work requests are counted by ibv_wr_opcode, from IBV_WR_RDMA_WRITE to IBV_WR_ATOMIC_WRITE.
inline constexpr uint32_t kCountedOpcodes = 16;

// Since the queue pair, the process or the machine's memory began.
struct Counts {
  uint64_t requests[kCountedOpcodes];  // posted to send queues
  uint64_t bytes;                      // that these moved, READs and atomics included
  uint64_t errors;                     // requests that ended with an error, or flushed
  uint64_t waits;                      // requests that first found no receive, or no peer
  uint64_t received;                   // receive completions
  uint64_t received_bytes;             // of these; WRITEs and READs of a peer are not among them
  uint64_t receive_errors;             // that arrivals had; flushed receives are not among them
  uint64_t dropped;  // messages over UC and UD that nobody received, at whichever end dropped them
};

struct WatchedProcess {
  int32_t pid;
  uint32_t slot;
  uint32_t living;  // 0: it has ended, and nobody has summed its counts up yet
  uint32_t queue_pairs;
  char name[32];  // as the kernel had it when soft0 was opened
  Counts counts;
};

struct WatchedQueuePair {
  int32_t pid;
  uint32_t number;
  uint32_t peer;       // number of the connected one, or 0
  uint32_t transport;  // Transport: 1 RC, 2 UC, 3 UD, 4 XRC_SEND, 5 XRC_RECV, 6 RAW_PACKET
  uint32_t state;      // ibv_qp_state
  Counts counts;
};

struct Watch {
  // Calls `process` for each process that uses soft0, or did and has not been summed up, and
  // `queue_pair` for each of its queue pairs behind it. `device`: the sum of all, also of those
  // that are gone. Stops nobody. 0, or an errno value and control->last_error() says why.
  int (*read)(void* context, void (*process)(void*, const WatchedProcess*),
              void (*queue_pair)(void*, const WatchedQueuePair*), Counts* device);
  // Brings the counters below sysfs_root() up to date.
  void (*refresh_sysfs)();
};

}  // namespace verbena::soft
