#include "src/bench/run/placement.h"

#include <fstream>
#include <map>
#include <set>

namespace verbena::bench {

std::vector<std::vector<int>> place_threads(const std::vector<NodePlace>& nodes) {
  std::vector<std::vector<int>> placed(nodes.size());
  std::map<std::string, std::set<int>> taken;
  std::set<std::string> crowded;
  for (size_t i = 0; i < nodes.size(); ++i) {
    std::set<int>& here = taken[nodes[i].host];
    for (const int cpu : nodes[i].cpus) {
      if (placed[i].size() == nodes[i].threads) break;
      if (here.insert(cpu).second) placed[i].push_back(cpu);
    }
    if (placed[i].size() < nodes[i].threads) crowded.insert(nodes[i].host);
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (crowded.contains(nodes[i].host)) placed[i].assign(nodes[i].threads, -1);
  }
  return placed;
}

std::string host_identity() {
  std::string text;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> text;
  return text;
}

}  // namespace verbena::bench
