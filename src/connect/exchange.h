// How the two ends of a connection exchange their addresses, over the control connection:
//
//   steps of the layer above, if it has any
//   endpoint: queue pair, and what the layer above adds   <->   endpoint
//   both connect their queue pairs
//   ready                                                 <->   ready
//
// Each step can carry a failure instead, so that the other side learns the reason and neither waits
// in vain. Every number is checked before anything is made from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "src/base/wire.h"
#include "src/connect/endpoint.h"
#include "verbena/connection.h"
#include "verbena/status.h"

namespace verbena::connect {

// The layer whose connection it is. Both sides must name the same one, in the same version.
struct Layer {
  const char* name;  // "request/response"
  uint32_t magic;
  uint16_t version;
};

// Steps below this are join()'s own.
inline constexpr uint8_t kFirstStepOfLayer = 16;

// Begins the frame of a step, with how the sender fared: ok, or why it stops here.
void begin_step(WireWriter& writer, const Layer& layer, uint8_t step, const Status& fared);
// Reads the beginning of a frame that should be `step`. An error is the peer's own, or what is
// wrong with its frame.
Status check_step(const ControlConnection& control, const Layer& layer, WireReader& reader,
                  uint8_t step);

// Whether the connection is still wanted: asked about 20 times a second by who waits for a peer,
// which may be stopped. Empty: it is, until the time-out.
using Wanted = std::function<bool()>;
// The peer's next frame. kUnavailable, too, once the connection is not wanted any more.
Result<std::vector<std::byte>> receive_while(ControlConnection& control, int64_t timeout_ns,
                                             const Wanted& wanted);

// Exchanges endpoints with the peer and connects the queue pairs; returns when both sides may send.
// `mine` are the bytes for the peer's layer, or the reason why there is no endpoint (`endpoint` is
// null then). `accept` reads and checks those of the peer, before anything is connected; the peer
// gets its error, too. `wanted` as above. Control path.
Status join(ControlConnection& control, const Layer& layer, Endpoint* endpoint,
            const Result<std::vector<std::byte>>& mine,
            const std::function<Status(WireReader& theirs)>& accept, int64_t timeout_ns,
            const Wanted& wanted = {});

// The same for an end without a queue pair of its own: datagrams of `queue_pair`, which is kUd, has
// been started and has other peers, too. Null where `mine` is an error. Sets `peer`.
Status join(ControlConnection& control, const Layer& layer, const QueuePair* queue_pair,
            DatagramPeer* peer, const Result<std::vector<std::byte>>& mine,
            const std::function<Status(WireReader& theirs)>& accept, int64_t timeout_ns);

}  // namespace verbena::connect
