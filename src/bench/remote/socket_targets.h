// Memory of a back-end on several sockets, and the ways of a front-end's threads to it ("memsem"
// III-D).
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "src/bench/remote/remote_settings.h"
#include "src/bench/remote/remote_thread.h"
#include "src/bench/remote/write_operation.h"
#include "src/bench/run/node_job.h"
#include "verbena/remote.h"
#include "verbena/remote_sockets.h"
#include "verbena/rpc.h"
#include "verbena/status.h"

namespace verbena::bench {

// The port of each socket that a node uses.
class SocketPorts {
 public:
  // Opens one for each of the point's sockets; with SocketLinks::kOne all are the job's device.
  static Result<std::unique_ptr<SocketPorts>> open(const NodeJob& job);
  std::span<const SocketDevice> devices() const { return devices_; }

 private:
  std::deque<Device> ports_;
  std::deque<ProtectionDomain> domains_;
  std::vector<SocketDevice> devices_;
};

// Connections that the responding thread has to take in, of all front-ends together.
uint32_t socket_connections(const Point& point);

// The calling thread goes to its socket, where the machine has as many as the point.
Status run_on_own_socket(const Point& point, uint32_t thread);

// What the threads of a front-end share.
struct SharedSockets {
  std::unique_ptr<SocketPorts> ports;
  std::unique_ptr<SocketConnections> connections;  // SocketLinks::kMatched
};

// A thread's regions: one with all parts, or one for each part.
struct SocketRegions {
  std::vector<std::unique_ptr<ControlConnection>> controls;
  std::vector<std::unique_ptr<verbena::RemoteRegion>> regions;  // destroyed first
  uint32_t queue_pairs = 0;  // opened for them, of proxies those that this thread has started
};
Result<SocketRegions> connect_socket_regions(NodeJob& job, uint32_t number);

// Writes that go to all parts.
class SocketWrites {
 public:
  SocketWrites(const RemoteThread& thread, const SocketRegions& own);

  void begin(bool verify);
  void end(Report& report);
  const Status& status() const { return status_; }

  PostResult post(uint32_t slot) {
    const WrittenPart::Write write = part_.next();
    const uint64_t part = own_.regions.size() == 1 ? 0 : write.offset_bytes / socket_bytes_;
    ++written_;
    return own_.regions[part]->post_write(write.offset_bytes - part * socket_bytes_, write.bytes,
                                          slot);
  }
  template <typename Take>
  uint32_t poll(Take&& done) {
    uint32_t found = 0;
    for (const auto& region : own_.regions) {
      if (region->outstanding() == 0) continue;
      found += region->poll(
          [&done](const RemoteCompletion& one) { done(static_cast<uint32_t>(one.token)); });
      if (!region->status().ok()) [[unlikely]]
        fail(region->status());
    }
    return found;
  }
  uint32_t outstanding() const;

 private:
  void fail(const Status& status) {
    if (status_.ok()) status_ = status;
  }

  const SocketRegions& own_;
  const uint64_t socket_bytes_;
  const bool first_;  // of all requesting threads
  WrittenPart part_;
  uint64_t written_ = 0;
  bool verify_ = false;
  Status status_;
};

}  // namespace verbena::bench
