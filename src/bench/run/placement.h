// Which CPU each thread of a benchmark gets.
//
// The papers pin every thread to a core of its own. That is done where there are enough of them, in
// the order of usable_cpus(); where there are not, all threads of that host move freely, since two
// pinned pollers on one core only get in each other's way.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace verbena::bench {

struct NodePlace {
  std::string host;       // nodes with the same text share their CPUs
  std::vector<int> cpus;  // that the node may use, best first
  uint32_t threads = 0;
};

// For each node the CPU of each thread, -1 where it is not pinned. Pure.
std::vector<std::vector<int>> place_threads(const std::vector<NodePlace>& nodes);

// This machine while it is up, for NodePlace::host: processes of different containers on one kernel
// have the same.
std::string host_identity();

}  // namespace verbena::bench
