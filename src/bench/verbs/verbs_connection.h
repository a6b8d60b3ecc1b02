// The queue pair and the memory of a thread that posts raw verbs, and of the thread that they
// reach.
#pragma once

#include <cstdint>
#include <optional>

#include "src/bench/experiment/point.h"
#include "src/connect/endpoint.h"
#include "src/memory/arena.h"
#include "verbena/connection.h"
#include "verbena/device.h"
#include "verbena/status.h"

namespace verbena::bench {

// Where the other side's region is.
struct RemoteRegion {
  uint64_t address = 0;
  uint64_t rkey = 0;
};

struct VerbsConnection {
  connect::Endpoint endpoint;  // its arena is the region
  // With VectorMethod::kSp, where entries are put together: room for each pending operation.
  std::optional<RegisteredArena> staging;
  RemoteRegion remote{};
  uint32_t receives = 0;  // that are posted, of a responder of SENDs
};

// Makes all of it for `point`, and connects with what the other side made for the same point.
// `responds`: this side is the one that operations reach; its receives, each as long as a work
// request of the other side, are posted before anything can come. The calling thread goes
// to the socket that the point has for this side. Control path.
Result<VerbsConnection> connect_verbs(const Device& device, const ProtectionDomain& domain,
                                      const Point& point, bool responds,
                                      ControlConnection& control);

// One of the connections of a thread that takes turns between peers; all complete into
// `completions`. Messages go from the region of the first one, and datagrams by its queue pair: the
// later ones then say where their peers are.
Result<VerbsConnection> connect_peer(const Device& device, const ProtectionDomain& domain,
                                     const Point& point, const CompletionQueue& completions,
                                     bool first, ControlConnection& control);

// Posts one receive, the `number`-th. False: the queue pair refuses it.
bool post_receive(const VerbsConnection& connection, const Point& point, uint64_t number);

}  // namespace verbena::bench
