// How sockets are found out.
#pragma once

#include <hwloc.h>
#include <infiniband/verbs.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "verbena/sockets.h"
#include "verbena/status.h"

namespace verbena {

int socket_of(const ibv_context& device);  // as sockets.h has it

// The rest asks nothing of this machine.

// The sockets of a topology, with those of `cpus` that each has. One with all of them where the
// topology tells of none.
std::vector<Socket> sockets_of(hwloc_topology_t topology, const std::vector<int>& cpus);

// `count` sockets that share `cpus`, in runs of as equal length as can be. With fewer CPUs than
// sockets, each has one, and several have the same.
std::vector<Socket> declared_sockets(uint32_t count, const std::vector<int>& cpus);

// What VERBENA_SOCKETS says: 1 to 64.
Result<uint32_t> parse_socket_count(std::string_view text);

// The NUMA node in the file `device/numa_node` of a device's folder in sysfs; -1 if it says none.
int numa_node_of_device(const std::string& sysfs_folder);

// The socket that has this NUMA node; kAnySocket if none has.
int socket_of_node(const std::vector<Socket>& sockets, int numa_node);

}  // namespace verbena
