// Requests and their answers as packets, segmented by the path's MTU.
#pragma once

#include <cstdint>

#include "src/device/soft/observe/record_ring.h"
#include "src/device/soft/observe/tracked_queue_pair.h"

namespace verbena::soft::observe {

// How much of each packet is kept.
struct SnapLength {
  uint32_t bytes;
};

// The packets that a request which is about to be posted sends, into the ring, and what the answers
// need into `posted`. A request that never reaches the wire has none. Holds queue_pair.mutex.
void capture_request(TrackedQueuePair& queue_pair, const Qp& qp, const ibv_send_wr& wr,
                     uint64_t time_ns, SnapLength snap, RecordRing& ring, Posted& posted);

// The answers to the request at the head of the queue: of a READ and an atomic operation always, of
// others an acknowledgement if `acknowledged`, or what refuses it. Holds queue_pair.mutex.
void capture_answer(TrackedQueuePair& queue_pair, const Posted& posted, ibv_wc_status status,
                    bool acknowledged, uint64_t time_ns, SnapLength snap, RecordRing& ring);

}  // namespace verbena::soft::observe
