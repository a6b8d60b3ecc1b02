// A simulated node: its threads, and its RNIC.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/device/sim/rnic.h"
#include "src/device/sim/rnic_profile.h"
#include "src/device/sim/simulation.h"

namespace verbena::sim {

class Node {
 public:
  Node(Simulation& simulation_in, const Profile& profile_in, uint32_t number_in, uint64_t seed)
      : simulation(simulation_in),
        profile(profile_in),
        number(number_in),
        publications(profile_in.sockets),
        rnic(simulation_in, *this, seed) {}

  // From now on its threads stand still and its RNIC is silent, as when a host loses power. Who
  // joins them need not wait. Its control connections end when others take it for dead.
  void crash() {
    crashed = true;
    for (Fiber* fiber : threads) {
      simulation.give_up(*fiber);
      simulation.wake_all_at(fiber);
    }
    simulation.at(
        simulation.now() + VirtualTime::kSilenceLimitNs * kPsPerNs,
        [](void* node, uint64_t) {
          Node& dead = *static_cast<Node*>(node);
          *dead.taken_for_dead = true;
          dead.simulation.wake_all_waiting();
        },
        this);
  }
  // What the first touch of a line that an RNIC wrote takes longer where not all are on one socket:
  // the RNIC writes into the caches of its own socket only, and from another socket's memory or
  // cache a line comes later.
  Time remote_line(uint32_t thread, uint32_t memory, uint32_t rnic) const {
    return ((memory != rnic ? 1 : 0) + (thread != memory ? 1 : 0)) * profile.cpu_remote_line;
  }
  // What takes `alone` on a core of its own takes the thread so long with this many threads at
  // work: those that wait for each other, or for control connections, take no core.
  Time slowed(const Fiber& fiber, Time alone) const;

  bool shares_core(const Fiber& fiber) const;

  Simulation& simulation;
  const Profile profile;
  const uint32_t number;
  bool crashed = false;
  const std::shared_ptr<bool> taken_for_dead = std::make_shared<bool>(false);
  uint64_t slow_percent = 100;  // what its threads do takes so long; above 100: a slow node
  std::vector<Fiber*> threads;
  std::vector<uint64_t> publications;  // words that threads of each socket published
  Rnic rnic;
};

// An object of the domain is destroyed. On a crashed node the domain may be gone already.
inline void leave_domain(const Node& node, ibv_pd* domain) {
  if (!node.crashed) --as_pd(domain).users;
}

}  // namespace verbena::sim
