#include "verbena/sockets.h"

#include <fmt/format.h>
#include <hwloc.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "src/base/log.h"
#include "src/base/runtime.h"
#include "src/memory/socket_topology.h"

namespace verbena {
namespace {

class HwlocSet {
 public:
  HwlocSet() : set_(hwloc_bitmap_alloc()) {}
  HwlocSet(const HwlocSet&) = delete;
  HwlocSet& operator=(const HwlocSet&) = delete;
  ~HwlocSet() { hwloc_bitmap_free(set_); }
  hwloc_bitmap_t get() const { return set_; }

 private:
  hwloc_bitmap_t set_;
};

// Of this machine; null where it cannot be found out. Kept until the process ends.
hwloc_topology_t load_topology() {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return nullptr;
  hwloc_topology_set_flags(topology, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  hwloc_topology_set_all_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_STRUCTURE);
  if (hwloc_topology_load(topology) == 0) return topology;
  hwloc_topology_destroy(topology);
  return nullptr;
}

hwloc_topology_t machine_topology() {
  static const hwloc_topology_t topology = load_topology();
  return topology;
}

std::vector<Socket> find_sockets() {
  const std::vector<int> cpus = usable_cpus();
  if (const char* const text = std::getenv("VERBENA_SOCKETS"); text != nullptr) {
    const Result<uint32_t> count = parse_socket_count(text);
    if (count.ok()) return declared_sockets(*count, cpus);
    log_warning("{}", count.status().message());
  }
  const hwloc_topology_t topology = machine_topology();
  return topology != nullptr ? sockets_of(topology, cpus)
                             : std::vector<Socket>{{.cpus = cpus, .numa_nodes = {}}};
}

// Of a simulated node, whose processors have no numbers.
const std::vector<Socket>& simulated_sockets(uint32_t count) {
  static const auto* const by_count = [] {
    auto* const all = new std::vector<std::vector<Socket>>;
    for (uint32_t i = 0; i <= VirtualTime::kMostSockets; ++i) all->emplace_back(i);
    return all;
  }();
  return by_count->at(count);
}

Status check_socket(int socket) {
  const size_t count = machine_sockets().size();
  if (socket >= 0 && static_cast<size_t>(socket) < count) return Status::ok_status();
  return Status(StatusCode::kInvalidArgument,
                fmt::format("socket {} was asked for, and there are {}; choose 0 to {}", socket,
                            count, count - 1));
}

}  // namespace

const std::vector<Socket>& machine_sockets() {
  if (VirtualTime* const time = VirtualTime::current()) return simulated_sockets(time->sockets());
  static const std::vector<Socket>* const sockets = new std::vector<Socket>(find_sockets());
  return *sockets;
}

int socket_of(const ibv_context& device) {
  if (VirtualTime* const time = VirtualTime::current()) return time->socket_of_device(&device);
  // Only devices of the kernel have a folder.
  if (device.device == nullptr || device.device->ibdev_path[0] == '\0') return kAnySocket;
  return socket_of_node(machine_sockets(), numa_node_of_device(device.device->ibdev_path));
}

int socket_of(const Device& device) { return socket_of(*device.get()); }

int socket_of_memory(const void* memory, size_t bytes) {
  if (VirtualTime* const time = VirtualTime::current()) {
    return time->socket_of_memory(memory, bytes);
  }
  const HwlocSet nodes;
  const hwloc_topology_t topology = machine_topology();
  if (topology == nullptr || bytes == 0 ||
      hwloc_get_area_memlocation(topology, memory, bytes, nodes.get(), HWLOC_MEMBIND_BYNODESET) !=
          0) {
    return kAnySocket;
  }
  const std::vector<Socket>& sockets = machine_sockets();
  const int first = hwloc_bitmap_first(nodes.get());
  const int socket = socket_of_node(sockets, first);
  for (int node = first; node >= 0; node = hwloc_bitmap_next(nodes.get(), node)) {
    if (socket_of_node(sockets, node) != socket) return kAnySocket;
  }
  return socket;
}

Status place_on_socket(void* memory, size_t bytes, int socket) {
  if (socket == kAnySocket) return Status::ok_status();
  VERBENA_RETURN_IF_ERROR(check_socket(socket));
  if (VirtualTime* const time = VirtualTime::current()) {
    time->place_on_socket(memory, bytes, static_cast<uint32_t>(socket));
    return Status::ok_status();
  }
  const std::vector<Socket>& sockets = machine_sockets();
  const std::vector<int>& numa_nodes = sockets[static_cast<size_t>(socket)].numa_nodes;
  if (sockets.size() == 1 || numa_nodes.empty() || bytes == 0) return Status::ok_status();
  const HwlocSet nodes;
  for (int node : numa_nodes) hwloc_bitmap_set(nodes.get(), static_cast<unsigned>(node));
  if (hwloc_set_area_membind(machine_topology(), memory, bytes, nodes.get(), HWLOC_MEMBIND_BIND,
                             HWLOC_MEMBIND_BYNODESET | HWLOC_MEMBIND_MIGRATE) == 0) {
    return Status::ok_status();
  }
  return Status(
      StatusCode::kUnsupported,
      fmt::format("cannot place {} bytes on socket {} (mbind: {}); allow the system call, as "
                  "containers do with CAP_SYS_NICE, or start the process with numactl",
                  bytes, socket, std::strerror(errno)));
}

Status run_on_socket(int socket) {
  VERBENA_RETURN_IF_ERROR(check_socket(socket));
  if (VirtualTime* const time = VirtualTime::current()) {
    time->run_on_socket(static_cast<uint32_t>(socket));
    return Status::ok_status();
  }
  const std::vector<int>& cpus = machine_sockets()[static_cast<size_t>(socket)].cpus;
  if (!cpus.empty() && pin_this_thread(cpus)) return Status::ok_status();
  return Status(StatusCode::kUnavailable,
                fmt::format("this process may use none of the processors of socket {}; start it "
                            "without numactl or taskset, or use another socket",
                            socket));
}

}  // namespace verbena
