// One end of a connection: its queue pair, completion queues and registered memory. Control path.
#pragma once

#include <cstdint>
#include <memory>

#include "src/channel/send_queue.h"
#include "src/memory/arena.h"
#include "src/rpc/handshake.h"
#include "verbena/device.h"
#include "verbena/status.h"

namespace verbena::rpc {

struct EndpointPlan {
  uint64_t arena_bytes = 0;
  bool peer_writes = false;  // into the arena
  bool peer_reads = false;   // memory that is registered elsewhere
  channel::SendQueueSizes send;
  uint32_t inline_bytes = 0;
  // Receives of the endpoint's own, or of a queue that connections share, or none.
  uint32_t own_receives = 0;
  const SharedReceiveQueue* shared_receives = nullptr;
  const CompletionQueue* shared_completions = nullptr;
  // Where its own receives' completions raise events; null: polling only.
  const CompletionChannel* events = nullptr;
  const CompletionChannel* send_events = nullptr;  // the same for the send queue's
  bool huge_pages = false;
};

struct Endpoint {
  RegisteredArena arena;
  std::unique_ptr<CompletionQueue> send_completions;
  std::unique_ptr<CompletionQueue> receive_completions;  // only with receives of its own
  QueuePair queue_pair;                                  // destroyed first
};

// The software RNIC moves registered memory into pages of its own, and asks for huge ones itself.
bool wants_huge_pages(const Device& device, bool asked);

// Makes the objects and brings the queue pair to INIT, where receives may be posted.
Result<Endpoint> make_endpoint(const Device& device, const ProtectionDomain& domain,
                               const EndpointPlan& plan);

// Trades endpoints with the peer and connects the queue pairs; returns when both sides may send.
// `mine` carries everything but the address, or why there is no endpoint (`endpoint` then is null).
Result<EndpointTerms> join(ControlConnection& control, Endpoint* endpoint,
                           Result<EndpointTerms> mine, const EndpointNeeds& needs,
                           int64_t timeout_ns);

}  // namespace verbena::rpc
