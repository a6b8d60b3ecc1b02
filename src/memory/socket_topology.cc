#include "src/memory/socket_topology.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>

namespace verbena {

std::vector<Socket> sockets_of(hwloc_topology_t topology, const std::vector<int>& cpus) {
  std::vector<Socket> sockets;
  const int count = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PACKAGE);
  for (int i = 0; i < count; ++i) {
    const hwloc_obj_t package =
        hwloc_get_obj_by_type(topology, HWLOC_OBJ_PACKAGE, static_cast<unsigned>(i));
    Socket& socket = sockets.emplace_back();
    for (int cpu : cpus) {
      if (hwloc_bitmap_isset(package->cpuset, static_cast<unsigned>(cpu)) != 0) {
        socket.cpus.push_back(cpu);
      }
    }
    if (package->nodeset == nullptr) continue;
    for (int node = hwloc_bitmap_first(package->nodeset); node >= 0;
         node = hwloc_bitmap_next(package->nodeset, node)) {
      socket.numa_nodes.push_back(node);
    }
  }
  if (sockets.empty()) sockets.push_back({.cpus = cpus, .numa_nodes = {}});
  return sockets;
}

std::vector<Socket> declared_sockets(uint32_t count, const std::vector<int>& cpus) {
  std::vector<Socket> sockets(count);
  for (size_t i = 0; i < count && !cpus.empty(); ++i) {
    const size_t first = i * cpus.size() / count;
    const size_t end = std::max(first + 1, (i + 1) * cpus.size() / count);
    for (size_t cpu = first; cpu < end; ++cpu) sockets[i].cpus.push_back(cpus[cpu]);
  }
  return sockets;
}

Result<uint32_t> parse_socket_count(std::string_view text) {
  constexpr uint32_t kMostSockets = 64;
  uint32_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error == std::errc() && end == text.data() + text.size() && count >= 1 &&
      count <= kMostSockets) {
    return count;
  }
  return Status(
      StatusCode::kInvalidArgument,
      fmt::format("VERBENA_SOCKETS is '{}'; choose 1 to {}, or unset it", text, kMostSockets));
}

int numa_node_of_device(const std::string& sysfs_folder) {
  std::ifstream file(sysfs_folder + "/device/numa_node");
  int node = -1;
  return file >> node && node >= 0 ? node : -1;
}

int socket_of_node(const std::vector<Socket>& sockets, int numa_node) {
  for (size_t i = 0; i < sockets.size(); ++i) {
    if (std::ranges::count(sockets[i].numa_nodes, numa_node) != 0) return static_cast<int>(i);
  }
  return kAnySocket;
}

}  // namespace verbena
