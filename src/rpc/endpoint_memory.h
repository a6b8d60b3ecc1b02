// What a side of a connection tells its peer about the memory that messages use, and how the two
// sides are joined.
#pragma once

#include <cstdint>

#include "src/connect/endpoint.h"
#include "verbena/connection.h"
#include "verbena/status.h"

namespace verbena::rpc {

struct EndpointMemory {
  uint32_t connection = 0;  // number of the connection here: goes into messages' immediates
  // kUc, kUd: the connection's slots are those from `first_slot` of the queue pair's, in messages
  // of both directions. The first message of a slot is that after `generation`.
  uint32_t first_slot = 0;
  uint32_t queue_pair_slots = 0;
  uint32_t generation = 0;
  uint64_t slots_address = 0;  // where the peer may write its messages; 0 bytes: nowhere
  uint64_t slots_bytes = 0;
  uint32_t slots_rkey = 0;
  uint64_t notifications_address = 0;  // and where it may announce them
  uint64_t notifications_bytes = 0;
  uint32_t notifications_rkey = 0;
  uint64_t readable_address = 0;  // READ
  uint64_t readable_bytes = 0;
  uint32_t readable_rkey = 0;
};

// What this side needs of the peer's memory.
struct EndpointNeeds {
  uint32_t queue_pair_slots = 0;  // kUc, kUd
  uint64_t slots_bytes = 0;
  uint64_t notifications_bytes = 0;
  bool readable = false;
};

// Whether a peer's numbers can be true and suffice; pure.
Status check_memory(const EndpointMemory& memory, const EndpointNeeds& needs);

// Slots of a queue pair over kUc or kUd, those of all its connections together: then a slot's
// message comes again after 2^16 of them at the soonest.
inline constexpr uint32_t kMaxQueuePairSlots = 1u << 16;

// connect::join() for two endpoints of request/response; the peer's memory has passed
// check_memory().
Result<EndpointMemory> join(ControlConnection& control, connect::Endpoint* endpoint,
                            const Result<EndpointMemory>& mine, const EndpointNeeds& needs,
                            int64_t timeout_ns);
// The same where this side sends datagrams of a queue pair that has other peers, too.
Result<EndpointMemory> join(ControlConnection& control, const QueuePair* queue_pair,
                            DatagramPeer* peer, const Result<EndpointMemory>& mine,
                            const EndpointNeeds& needs, int64_t timeout_ns);

}  // namespace verbena::rpc
