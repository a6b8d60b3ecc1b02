// One end of a connection: its queue pair, completion queues and registered memory. Control path.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "src/channel/send_queue.h"
#include "src/memory/arena.h"
#include "verbena/device.h"
#include "verbena/status.h"

namespace verbena::connect {

struct EndpointPlan {
  Transport transport = Transport::kRc;
  uint64_t arena_bytes = 0;
  // IBV_ACCESS_REMOTE_*: what the peer may do to the arena, and to memory registered elsewhere.
  unsigned arena_access = 0;
  int arena_socket = kAnySocket;
  unsigned other_access = 0;
  uint32_t send_depth_wrs = 0;
  uint32_t max_send_sges = 1;
  uint32_t inline_bytes = 0;
  // READs and atomics of one side that may be outstanding; the lower of both sides' holds.
  uint8_t max_outstanding_reads = 0;
  // Receives of the endpoint's own, or of a queue that connections share, or none.
  uint32_t own_receives = 0;
  uint32_t max_receive_sges = 1;  // of its own
  const SharedReceiveQueue* shared_receives = nullptr;
  const CompletionQueue* shared_completions = nullptr;
  // Where sends complete that share a queue; null: in one of its own.
  const CompletionQueue* shared_send_completions = nullptr;
  // Where its own receives' completions raise events; null: polling only.
  const CompletionChannel* events = nullptr;
  const CompletionChannel* send_events = nullptr;  // the same for the send queue's
  bool huge_pages = false;
};

struct Endpoint {
  Endpoint(RegisteredArena its_arena, CompletionQueue its_send_completions,
           CompletionQueue its_receive_completions, QueuePair its_queue_pair)
      : arena(std::move(its_arena)),
        send_completions(std::move(its_send_completions)),
        receive_completions(std::move(its_receive_completions)),
        queue_pair(std::move(its_queue_pair)) {}
  Endpoint(Endpoint&&) = default;
  // The old queue pair goes before what it uses, as in the destructor.
  Endpoint& operator=(Endpoint&& other) noexcept {
    queue_pair = std::move(other.queue_pair);
    receive_completions = std::move(other.receive_completions);
    send_completions = std::move(other.send_completions);
    arena = std::move(other.arena);
    max_outstanding_reads = other.max_outstanding_reads;
    return *this;
  }

  RegisteredArena arena;
  CompletionQueue send_completions;     // none where it shares one
  CompletionQueue receive_completions;  // only with receives of its own
  QueuePair queue_pair;                 // destroyed first
  uint8_t max_outstanding_reads = 0;
};

// The software RNIC moves registered memory into pages of its own, and asks for huge ones itself.
bool wants_huge_pages(const Device& device, bool asked);

// As many READs as the device carries out at once, within what one byte of the handshake holds.
uint8_t outstanding_reads(const DeviceInfo& device);

// Makes the objects and brings the queue pair to INIT, where receives may be posted.
Result<Endpoint> make_endpoint(const Device& device, const ProtectionDomain& domain,
                               const EndpointPlan& plan);

}  // namespace verbena::connect
