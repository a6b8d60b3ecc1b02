// A back-end with a region on each socket. All of it is control path.
#include <fmt/format.h>

#include <utility>
#include <vector>

#include "src/remote/socket_hello.h"
#include "verbena/remote_sockets.h"

namespace verbena::remote {
namespace {

class HostedSockets final : public ExposedSockets {
 public:
  HostedSockets(std::vector<std::unique_ptr<ExposedRegion>> parts, int64_t timeout_ns)
      : parts_(std::move(parts)), timeout_ns_(timeout_ns) {}

  Status accept(ControlConnection& control) override;
  uint32_t sockets() const override { return static_cast<uint32_t>(parts_.size()); }
  ExposedRegion& part(uint32_t socket) override { return *parts_.at(socket); }

 private:
  std::vector<std::unique_ptr<ExposedRegion>> parts_;
  const int64_t timeout_ns_;
};

Status HostedSockets::accept(ControlConnection& control) {
  VERBENA_ASSIGN_OR_RETURN(
      const SocketHello theirs,
      control.exchange(kSocketHello, SocketHello{.sockets = sockets(), .socket = 0}, timeout_ns_));
  if (theirs.sockets != sockets() || theirs.socket >= sockets()) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("the front-end {} uses socket {} of {}, and this back-end has {} "
                              "sockets; give both the same number of devices",
                              control.peer_name(), theirs.socket, theirs.sockets, sockets()));
  }
  return parts_[theirs.socket]->accept(control);
}

}  // namespace
}  // namespace verbena::remote

namespace verbena {

Result<std::unique_ptr<ExposedSockets>> expose_sockets(std::span<const SocketDevice> devices,
                                                       const ExposedRegionOptions& options) {
  if (devices.empty() || devices.size() > kMaxRemoteSockets) {
    return Status(StatusCode::kInvalidArgument, fmt::format("{} devices were given; choose 1 to {}",
                                                            devices.size(), kMaxRemoteSockets));
  }
  if (!options.memory.empty() || options.socket != kAnySocket) {
    return Status(StatusCode::kInvalidArgument,
                  "parts on sockets make their memory themselves; set size_bytes, and neither "
                  "memory nor socket");
  }
  std::vector<std::unique_ptr<ExposedRegion>> parts;
  for (const SocketDevice& device : devices) {
    ExposedRegionOptions own = options;
    if (machine_sockets().size() == devices.size()) own.socket = static_cast<int>(parts.size());
    VERBENA_ASSIGN_OR_RETURN(auto part, expose_region(*device.device, *device.domain, own));
    parts.push_back(std::move(part));
  }
  return std::unique_ptr<ExposedSockets>(
      new remote::HostedSockets(std::move(parts), options.handshake_timeout_ns));
}

}  // namespace verbena
