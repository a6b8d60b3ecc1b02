// Memory of back-ends on several sockets, and the ways of a front-end's threads to its parts
// ("memsem" III-D). With one socket all of it is what a back-end and a thread have anyway: one
// region.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "src/bench/experiment/socket_links.h"
#include "src/bench/run/node_job.h"
#include "verbena/connection.h"
#include "verbena/remote.h"
#include "verbena/remote_sockets.h"
#include "verbena/status.h"

namespace verbena::bench {

// The port of each socket that a node uses.
class SocketPorts {
 public:
  // Opens one for each socket; with one socket, and with SocketLinks::kOne, all are the job's
  // device.
  static Result<std::unique_ptr<SocketPorts>> open(const NodeJob& job, const SocketUse& use);
  std::span<const SocketDevice> devices() const { return devices_; }

 private:
  std::deque<Device> ports_;
  std::deque<ProtectionDomain> domains_;
  std::vector<SocketDevice> devices_;
};

uint32_t socket_of_thread(const Point& point, const SocketUse& use, uint32_t number);

// The calling thread goes to its socket, where the machine has as many as the point.
Status run_on_own_socket(const Point& point, const SocketUse& use, uint32_t number);

// Connections that a back-end has to take in, of all front-ends together.
uint32_t socket_connections(const Point& point, const SocketUse& use);

// --- a back-end ---

class ExposedParts {
 public:
  // Exposes `part_bytes` on each socket.
  static Result<std::unique_ptr<ExposedParts>> expose(const NodeJob& job, const SocketUse& use,
                                                      uint64_t part_bytes);

  uint32_t parts() const { return use_.sockets; }
  std::span<char> memory(uint32_t part) {
    ExposedRegion& region = sockets_->part(part);
    return {region.data(), region.size_bytes()};
  }
  // Takes one connection in; `requesting` is the number of the thread that has come.
  Status accept(std::unique_ptr<ControlConnection> control, uint32_t requesting);

 private:
  explicit ExposedParts(const SocketUse& use) : use_(use) {}

  const SocketUse use_;
  // What connections use goes after them.
  std::vector<std::unique_ptr<ControlConnection>> controls_;
  std::unique_ptr<SocketPorts> ports_;
  std::unique_ptr<ExposedSockets> sockets_;
  std::vector<uint32_t> next_part_;  // of requesting threads
};

// --- a front-end's thread ---

// A way to one part, or by proxies to all parts of a back-end.
struct ReachedPart {
  std::unique_ptr<ControlConnection> control{};
  std::unique_ptr<verbena::RemoteRegion> region{};  // destroyed first
  uint64_t offset_bytes = 0;                        // of the part in the region
  bool has_connection = false;                      // of its own, not of proxies alone
};

// Each thread of a node, once it is on its socket and before it reaches parts: the first one opens
// the ports and starts the proxies for all.
Status share_sockets(NodeJob& job, const SocketUse& use, uint32_t number);
// Queue pairs of the proxies that this thread has started.
uint32_t started_queue_pairs(const NodeJob& job, const SocketUse& use, uint32_t number);
// What the thread is connected through; not with proxies.
SocketDevice socket_device(const NodeJob& job, const SocketUse& use, uint32_t number);
// The parts of a back-end in their order.
Result<ReachedPart> reach_part(NodeJob& job, const SocketUse& use, uint32_t number,
                               uint32_t responding, uint32_t part,
                               const RemoteRegionOptions& options);

}  // namespace verbena::bench
