// A proxy: a thread on one socket that carries out what threads of other sockets want of the
// matched part of a back-end, on one connection ("memsem" III-D, IV-B).
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "src/base/runtime.h"
#include "src/remote/connected_region.h"
#include "src/remote/socket_lane.h"
#include "verbena/connection.h"
#include "verbena/device.h"
#include "verbena/remote.h"

namespace verbena::remote {

class SocketProxy {
 public:
  SocketProxy(const ProtectionDomain& domain, std::unique_ptr<ControlConnection> control,
              std::unique_ptr<ConnectedRegion> region)
      : domain_(&domain), control_(std::move(control)), region_(std::move(region)) {}
  // No lane is left: whoever has one keeps the proxy.
  ~SocketProxy();
  SocketProxy(const SocketProxy&) = delete;
  SocketProxy& operator=(const SocketProxy&) = delete;

  // `socket`: of the machine, where the thread runs; or kAnySocket.
  Status start(int socket);

  // Serves requests from there until it is told kLeave, and answers that as the last one.
  void add(std::shared_ptr<SocketLane> lane);

  const ProtectionDomain& domain() const { return *domain_; }
  // What does not change may be asked; its operations are the proxy's alone.
  const ConnectedRegion& region() const { return *region_; }
  // Why results are kBroken; for who has pulled one.
  const Status& failure() const { return failure_; }

 private:
  void run(int socket);
  uint32_t take_changes();
  uint32_t poll();
  bool serve(SocketLane& lane);
  PostResult post(const ProxyRequest& request, uint64_t token);
  void leave(SocketLane& lane);
  void fail(const Status& status);

  const ProtectionDomain* domain_;
  std::unique_ptr<ControlConnection> control_;
  std::unique_ptr<ConnectedRegion> region_;
  Thread thread_;

  // New lanes, and the end.
  std::mutex mutex_;
  std::vector<std::shared_ptr<SocketLane>> added_;
  bool ends_ = false;
  alignas(64) uint32_t changed_ = 0;  // published when the above has changed

  // Of the thread.
  std::vector<std::shared_ptr<SocketLane>> lanes_;
  std::vector<SocketLane*> leaving_;
  size_t first_ = 0;  // the lane that is served first: another one in each round
  bool stops_ = false;
  Status failure_;  // set before the first kBroken
};

}  // namespace verbena::remote
