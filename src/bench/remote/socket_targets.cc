#include "src/bench/remote/socket_targets.h"

#include <utility>

#include "src/bench/run/thread_connection.h"
#include "src/device/socket_port.h"
#include "verbena/sockets.h"

namespace verbena::bench {

namespace {

Result<ControlConnection> reach_back_end(const NodeJob& job, uint32_t number) {
  const uint32_t responding = job.wiring().requesting[number].peers.front();
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<ControlConnection> control,
                           reach(job, number, responding));
  return std::move(*control);
}

RemoteRegionOptions region_options(const Point& point) {
  RemoteRegionOptions options;
  options.pending = point.pending;
  options.value_bytes = remote_settings(point).size_bytes;
  options.threads = point.threads;
  options.handshake_timeout_ns = kSetupTimeoutNs;
  return options;
}

Status share_sockets(NodeJob& job, uint32_t number) {
  auto shared = std::make_shared<SharedSockets>();
  VERBENA_ASSIGN_OR_RETURN(shared->ports, SocketPorts::open(job));
  if (has_proxies(remote_settings(job.setup.point).links)) {
    VERBENA_ASSIGN_OR_RETURN(shared->connections,
                             connect_sockets(shared->ports->devices(),
                                             [&job, number] { return reach_back_end(job, number); },
                                             {.handshake_timeout_ns = kSetupTimeoutNs}));
  }
  job.shared = std::move(shared);
  return Status::ok_status();
}

uint32_t socket_of_thread(const Point& point, uint32_t number) {
  return number % point.threads % remote_settings(point).sockets;
}

}  // namespace

Result<std::unique_ptr<SocketPorts>> SocketPorts::open(const NodeJob& job) {
  const RemoteSettings& settings = remote_settings(job.setup.point);
  auto ports = std::make_unique<SocketPorts>();
  for (uint32_t socket = 0; socket < settings.sockets; ++socket) {
    if (settings.links == SocketLinks::kOne) {
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

uint32_t socket_connections(const Point& point) {
  const RemoteSettings& settings = remote_settings(point);
  const uint32_t threads = settings.links == SocketLinks::kProxied ? 0 : point.threads;
  if (has_proxies(settings.links)) return point.nodes * (threads + settings.sockets);
  return point.nodes * threads * settings.sockets;
}

Status run_on_own_socket(const Point& point, uint32_t number) {
  if (machine_sockets().size() < remote_settings(point).sockets) return Status::ok_status();
  return run_on_socket(static_cast<int>(socket_of_thread(point, number)));
}

Result<SocketRegions> connect_socket_regions(NodeJob& job, uint32_t number) {
  const Point& point = job.setup.point;
  const RemoteSettings& settings = remote_settings(point);
  VERBENA_RETURN_IF_ERROR(run_on_own_socket(point, number));
  bool first = false;
  VERBENA_RETURN_IF_ERROR(job.making_shared.run([&] {
    first = true;
    return share_sockets(job, number);
  }));
  const auto& shared = *static_cast<const SharedSockets*>(job.shared.get());
  SocketRegions own;
  const uint32_t socket = socket_of_thread(point, number);
  if (has_proxies(settings.links)) {
    const bool own_connection = settings.links == SocketLinks::kMatched;
    VERBENA_ASSIGN_OR_RETURN(
        auto region, shared.connections->open_region(socket, {.region = region_options(point),
                                                              .own_connection = own_connection}));
    own.regions.push_back(std::move(region));
    own.queue_pairs = (own_connection ? 1 : 0) + (first ? settings.sockets : 0);
    return own;
  }
  const SocketDevice& device = shared.ports->devices()[socket];
  for (uint32_t part = 0; part < settings.sockets; ++part) {
    VERBENA_ASSIGN_OR_RETURN(ControlConnection control, reach_back_end(job, number));
    own.controls.push_back(std::make_unique<ControlConnection>(std::move(control)));
    VERBENA_ASSIGN_OR_RETURN(auto region, open_region(*device.device, *device.domain,
                                                      *own.controls.back(), region_options(point)));
    own.regions.push_back(std::move(region));
    ++own.queue_pairs;
  }
  return own;
}

SocketWrites::SocketWrites(const RemoteThread& thread, const SocketRegions& own)
    : own_(own),
      socket_bytes_(socket_bytes(thread.point())),
      first_(thread.number == 0),
      part_(thread) {}

void SocketWrites::begin(bool verify) {
  part_.begin(verify);
  verify_ = verify;
  written_ = 0;
}

void SocketWrites::end(Report& report) {
  report.counters[kCountedOperations] = written_;
  report.counters[kRoundTrips] = written_;
  report.counters[kQueuePairs] = own_.queue_pairs;
  report.counters[kBackEnds] = first_ ? 1 : 0;
  if (!verify_ || !status_.ok()) return;
  const Result<uint64_t> wrong =
      part_.mismatches([this](uint64_t offset_bytes, std::span<char> into) {
        const uint64_t part = own_.regions.size() == 1 ? 0 : offset_bytes / socket_bytes_;
        return own_.regions[part]->read(offset_bytes - part * socket_bytes_, into);
      });
  if (!wrong.ok()) return fail(wrong.status());
  report.mismatches += *wrong;
}

uint32_t SocketWrites::outstanding() const {
  uint32_t sum = 0;
  for (const auto& region : own_.regions) sum += region->outstanding();
  return sum;
}

}  // namespace verbena::bench
