#include "src/bench/run/socket_parts.h"

#include <utility>

#include "src/bench/run/thread_connection.h"
#include "src/device/socket_port.h"
#include "verbena/sockets.h"

namespace verbena::bench {

namespace {

// What the threads of a front-end's node share.
struct SharedSockets {
  std::unique_ptr<SocketPorts> ports;
  std::vector<std::unique_ptr<SocketConnections>> connections;  // by back-ends, with proxies
  uint32_t first_thread = 0;
};

Result<ControlConnection> reach_back_end(const NodeJob& job, uint32_t number, uint32_t responding) {
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<ControlConnection> control,
                           reach(job, number, responding));
  return std::move(*control);
}

Status open_shared(NodeJob& job, const SocketUse& use, uint32_t number) {
  auto shared = std::make_shared<SharedSockets>();
  shared->first_thread = number;
  VERBENA_ASSIGN_OR_RETURN(shared->ports, SocketPorts::open(job, use));
  const uint32_t back_ends = job.setup.point.responder_nodes;
  for (uint32_t responding = 0; has_proxies(use.links) && responding < back_ends; ++responding) {
    const auto connect = [&job, number, responding] {
      return reach_back_end(job, number, responding);
    };
    VERBENA_ASSIGN_OR_RETURN(auto connections,
                             connect_sockets(shared->ports->devices(), connect,
                                             {.handshake_timeout_ns = kSetupTimeoutNs}));
    shared->connections.push_back(std::move(connections));
  }
  job.shared = std::move(shared);
  return Status::ok_status();
}

}  // namespace

Result<std::unique_ptr<SocketPorts>> SocketPorts::open(const NodeJob& job, const SocketUse& use) {
  auto ports = std::make_unique<SocketPorts>();
  for (uint32_t socket = 0; socket < use.sockets; ++socket) {
    if (use.sockets == 1 || use.links == SocketLinks::kOne) {
      ports->devices_.push_back({&job.device, &job.domain});
      continue;
    }
    VERBENA_ASSIGN_OR_RETURN(Device port,
                             open_port(job.device.info().name, static_cast<int>(socket)));
    ports->ports_.push_back(std::move(port));
    VERBENA_ASSIGN_OR_RETURN(ProtectionDomain domain,
                             ProtectionDomain::create(ports->ports_.back()));
    ports->domains_.push_back(std::move(domain));
    ports->devices_.push_back({&ports->ports_.back(), &ports->domains_.back()});
  }
  return ports;
}

uint32_t socket_of_thread(const Point& point, const SocketUse& use, uint32_t number) {
  return number % point.threads % use.sockets;
}

Status run_on_own_socket(const Point& point, const SocketUse& use, uint32_t number) {
  if (use.sockets == 1 || machine_sockets().size() < use.sockets) return Status::ok_status();
  return run_on_socket(static_cast<int>(socket_of_thread(point, use, number)));
}

uint32_t socket_connections(const Point& point, const SocketUse& use) {
  if (use.sockets == 1) return point.nodes * point.threads;
  const uint32_t threads = use.links == SocketLinks::kProxied ? 0 : point.threads;
  if (has_proxies(use.links)) return point.nodes * (threads + use.sockets);
  return point.nodes * threads * use.sockets;
}

// --- a back-end ---

Result<std::unique_ptr<ExposedParts>> ExposedParts::expose(const NodeJob& job, const SocketUse& use,
                                                           uint64_t part_bytes) {
  const Point& point = job.setup.point;
  std::unique_ptr<ExposedParts> parts(new ExposedParts(use));
  VERBENA_ASSIGN_OR_RETURN(parts->ports_, SocketPorts::open(job, use));
  VERBENA_ASSIGN_OR_RETURN(
      parts->sockets_,
      expose_sockets(parts->ports_->devices(), {.size_bytes = part_bytes,
                                                .max_connections = socket_connections(point, use),
                                                .handshake_timeout_ns = kSetupTimeoutNs}));
  parts->next_part_.resize(size_t{point.nodes} * point.threads);
  return parts;
}

// A thread that is connected to each part comes once for each, in their order.
Status ExposedParts::accept(std::unique_ptr<ControlConnection> control, uint32_t requesting) {
  controls_.push_back(std::move(control));
  ControlConnection& taken = *controls_.back();
  if (use_.sockets > 1 && has_proxies(use_.links)) return sockets_->accept(taken);
  if (requesting >= next_part_.size() || next_part_[requesting] == use_.sockets) {
    return {StatusCode::kProtocolViolation, "a thread has come more often than there are parts"};
  }
  return sockets_->part(next_part_[requesting]++).accept(taken);
}

// --- a front-end's thread ---

Status share_sockets(NodeJob& job, const SocketUse& use, uint32_t number) {
  if (use.sockets == 1) return Status::ok_status();
  return job.making_shared.run([&] { return open_shared(job, use, number); });
}

uint32_t started_queue_pairs(const NodeJob& job, const SocketUse& use, uint32_t number) {
  if (use.sockets == 1) return 0;
  const auto& shared = *static_cast<const SharedSockets*>(job.shared.get());
  if (number != shared.first_thread) return 0;
  return static_cast<uint32_t>(shared.connections.size()) * use.sockets;
}

SocketDevice socket_device(const NodeJob& job, const SocketUse& use, uint32_t number) {
  if (use.sockets == 1) return {&job.device, &job.domain};
  const auto& shared = *static_cast<const SharedSockets*>(job.shared.get());
  return shared.ports->devices()[socket_of_thread(job.setup.point, use, number)];
}

Result<ReachedPart> reach_part(NodeJob& job, const SocketUse& use, uint32_t number,
                               uint32_t responding, uint32_t part,
                               const RemoteRegionOptions& options) {
  ReachedPart reached;
  if (use.sockets > 1 && has_proxies(use.links)) {
    const auto& shared = *static_cast<const SharedSockets*>(job.shared.get());
    const uint32_t socket = socket_of_thread(job.setup.point, use, number);
    const bool own = use.links == SocketLinks::kMatched && part == socket;
    SocketConnections& connections = *shared.connections[responding];
    VERBENA_ASSIGN_OR_RETURN(
        reached.region,
        connections.open_region(socket, {.region = options, .own_connection = own}));
    reached.offset_bytes = connections.offset_bytes(part);
    reached.has_connection = own;
    return reached;
  }
  const SocketDevice device = socket_device(job, use, number);
  VERBENA_ASSIGN_OR_RETURN(reached.control, reach(job, number, responding));
  VERBENA_ASSIGN_OR_RETURN(reached.region,
                           open_region(*device.device, *device.domain, *reached.control, options));
  reached.has_connection = true;
  return reached;
}

}  // namespace verbena::bench
