// A process's proxies for one back-end, and the regions of its threads. All of it is control path.
#include <fmt/format.h>

#include <mutex>
#include <utility>
#include <vector>

#include "src/remote/connected_region.h"
#include "src/remote/proxied_part.h"
#include "src/remote/socket_hello.h"
#include "src/remote/socket_proxy.h"
#include "src/remote/socket_region.h"
#include "verbena/remote_sockets.h"

namespace verbena::remote {
namespace {

// What a proxy's connection has of its own is used by atomics only.
constexpr uint32_t kProxyValueBytes = sizeof(uint64_t);

class Connections final : public SocketConnections {
 public:
  Connections(std::span<const SocketDevice> devices, ConnectToBackEnd connect,
              const SocketConnectionsOptions& options)
      : devices_(devices.begin(), devices.end()), connect_(std::move(connect)), options_(options) {}

  Status start();

  Result<std::unique_ptr<RemoteRegion>> open_region(uint32_t socket,
                                                    const SocketRegionOptions& options) override;
  uint32_t sockets() const override { return static_cast<uint32_t>(devices_.size()); }
  uint64_t offset_bytes(uint32_t socket) const override { return begins_.at(socket); }
  uint64_t size_bytes(uint32_t socket) const override {
    return proxies_.at(socket)->region().size_bytes();
  }
  uint32_t queue_pairs() const override {
    const std::lock_guard lock(mutex_);
    return opened_;
  }

 private:
  Result<SocketRegion::Own> open(uint32_t socket, RemoteRegionOptions options);

  const std::vector<SocketDevice> devices_;
  const ConnectToBackEnd connect_;
  const SocketConnectionsOptions options_;
  std::vector<std::shared_ptr<SocketProxy>> proxies_;
  std::vector<uint64_t> begins_;
  mutable std::mutex mutex_;
  uint32_t opened_ = 0;
};

Result<SocketRegion::Own> Connections::open(uint32_t socket, RemoteRegionOptions options) {
  VERBENA_ASSIGN_OR_RETURN(ControlConnection connected, connect_());
  SocketRegion::Own own;
  own.control = std::make_unique<ControlConnection>(std::move(connected));
  VERBENA_ASSIGN_OR_RETURN(
      const SocketHello theirs,
      own.control->exchange(kSocketHello, SocketHello{.sockets = sockets(), .socket = socket},
                            options_.handshake_timeout_ns));
  if (theirs.sockets != sockets()) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("the back-end {} has {} sockets, and this front-end uses {}; give "
                              "both the same number of devices",
                              own.control->peer_name(), theirs.sockets, sockets()));
  }
  const SocketDevice& device = devices_[socket];
  options.handshake_timeout_ns = options_.handshake_timeout_ns;
  VERBENA_ASSIGN_OR_RETURN(
      own.region, ConnectedRegion::open(*device.device, *device.domain, *own.control, options));
  const std::lock_guard lock(mutex_);  // not before: who waits for a peer holds no lock
  ++opened_;
  return own;
}

Status Connections::start() {
  uint64_t begin_bytes = 0;
  const bool placed = machine_sockets().size() == devices_.size();
  for (uint32_t socket = 0; socket < sockets(); ++socket) {
    VERBENA_ASSIGN_OR_RETURN(SocketRegion::Own own, open(socket, {.pending = options_.proxy_pending,
                                                                  .value_bytes = kProxyValueBytes,
                                                                  .copy_bytes = kProxyValueBytes}));
    begins_.push_back(begin_bytes);
    begin_bytes += own.region->size_bytes();
    proxies_.push_back(std::make_shared<SocketProxy>(
        *devices_[socket].domain, std::move(own.control), std::move(own.region)));
    VERBENA_RETURN_IF_ERROR(proxies_.back()->start(placed ? static_cast<int>(socket) : kAnySocket));
  }
  return Status::ok_status();
}

Result<std::unique_ptr<RemoteRegion>> Connections::open_region(uint32_t socket,
                                                               const SocketRegionOptions& options) {
  if (socket >= sockets()) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("socket {} was asked for, and there are {}; choose 0 to {}", socket,
                              sockets(), sockets() - 1));
  }
  VERBENA_RETURN_IF_ERROR(check(options.region));
  SocketRegion::Own own;
  if (options.own_connection) {
    VERBENA_ASSIGN_OR_RETURN(own, open(socket, options.region));
  }
  std::vector<SocketRegion::Part> parts;
  bool writable = true;
  for (uint32_t i = 0; i < sockets(); ++i) {
    SocketRegion::Part part{begins_[i], begins_[i] + size_bytes(i), nullptr};
    writable = writable && proxies_[i]->region().writable();
    if (!options.own_connection || i != socket) {
      VERBENA_ASSIGN_OR_RETURN(part.proxied, ProxiedPart::open(proxies_[i], options.region));
    }
    parts.push_back(std::move(part));
  }
  return std::unique_ptr<RemoteRegion>(
      new SocketRegion(options.region, std::move(parts), std::move(own), writable));
}

}  // namespace
}  // namespace verbena::remote

namespace verbena {

Result<std::unique_ptr<SocketConnections>> connect_sockets(
    std::span<const SocketDevice> devices, ConnectToBackEnd connect,
    const SocketConnectionsOptions& options) {
  if (devices.empty() || devices.size() > kMaxRemoteSockets) {
    return Status(StatusCode::kInvalidArgument, fmt::format("{} devices were given; choose 1 to {}",
                                                            devices.size(), kMaxRemoteSockets));
  }
  if (options.proxy_pending < 1 || options.proxy_pending > remote::kMaxPending) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("proxy_pending is {}; choose 1 to {}", options.proxy_pending,
                              remote::kMaxPending));
  }
  auto connections = std::make_unique<remote::Connections>(devices, std::move(connect), options);
  VERBENA_RETURN_IF_ERROR(connections->start());
  return std::unique_ptr<SocketConnections>(std::move(connections));
}

}  // namespace verbena
