// How a responder over queue pairs that lose messages answers a request once, and its copies with
// the same response (unreliable.h says why that suffices).
#pragma once

#include <arpa/inet.h>
#include <infiniband/verbs.h>

#include <cstdint>
#include <span>
#include <vector>

#include "src/rpc/negotiation.h"
#include "src/rpc/responder_base.h"
#include "src/rpc/responder_control.h"
#include "src/rpc/unreliable_end.h"
#include "verbena/rpc.h"

namespace verbena::rpc {

// The request that a slot had last, and what is kept of its response: that lies in the slot.
struct KeptResponse {
  uint32_t generation = 0;
  uint32_t bytes = 0;
  bool any = false;   // false: the slot had no request yet
  uint64_t poll = 0;  // that took a request of the slot last; none has the number 0
};

struct UnreliableConnection : ResponderConnection {
  UnreliableConnection(ControlConnection& control_connection, const DesignRequest& agreed)
      : ResponderConnection(control_connection),
        request_max_bytes(agreed.request_max_bytes),
        response_max_bytes(agreed.response_max_bytes),
        kept(agreed.pending) {}

  uint32_t first_slot = 0;  // of the end's
  uint32_t request_max_bytes;
  uint32_t response_max_bytes;
  std::vector<KeptResponse> kept;  // by slot
};

// Takes a message of the connection's peer, which was found without a violation and for one of its
// slots: true if it was a new request. `poll` counts the polls of `end`. A handler that returned
// what cannot be sent has the connection's status say so. Needs room in the send queue.
template <typename Handler>
bool answer_request(UnreliableEnd& end, UnreliableConnection& connection, const ibv_wc& completion,
                    uint64_t poll, Handler& handler) {
  const uint32_t immediate = ntohl(completion.imm_data);
  const uint32_t slot_of_end = end.generations().slot(immediate);
  const uint32_t slot = slot_of_end - connection.first_slot;
  VERBENA_DEBUG_ASSERT(slot < connection.kept.size());
  const uint32_t generation = end.generations().generation(immediate);
  KeptResponse& kept = connection.kept[slot];
  // The list that is still to be posted may have what this poll answered in the slot before. A
  // work request that is in it twice makes it endless, and the handler would change its bytes.
  if (kept.poll == poll) [[unlikely]]
    end.queue().flush();
  kept.poll = poll;
  ConnectionStatistics& statistics = connection.statistics;
  if (generation != end.generations().next(kept.generation)) [[unlikely]] {
    ++statistics.duplicates;
    if (kept.any && generation == kept.generation) {
      end.post(slot_of_end, kept.generation, kept.bytes);
      ++statistics.resent;
    }
    return false;
  }
  kept.generation = generation;
  const std::span<const char> request = end.message(completion, slot_of_end);
  const std::span<char> response(end.payload(slot_of_end), connection.response_max_bytes);
  const uint32_t bytes = handler(Request{connection.number, slot, request}, response);
  if (bytes > response.size()) [[unlikely]] {
    connection.status = bad_answer(bytes, connection.response_max_bytes, connection.peer());
    return true;
  }
  kept.bytes = bytes;
  kept.any = true;
  end.post(slot_of_end, generation, bytes);
  ++statistics.requests;
  ++statistics.responses;
  statistics.request_bytes += request.size();
  statistics.response_bytes += bytes;
  return true;
}

}  // namespace verbena::rpc
