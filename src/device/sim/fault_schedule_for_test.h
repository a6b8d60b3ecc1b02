// What goes wrong in a simulated cluster, and when, for tests that draw it from a seed.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "src/base/runtime.h"
#include "src/device/sim/fabric.h"
#include "src/device/sim/simulated_node.h"
#include "src/device/sim/simulation.h"

namespace verbena::sim {

// 0: none of the kind.
struct FaultSchedule {
  uint32_t loss_ppm = 0;
  uint32_t delay_ppm = 0;
  uint64_t delay_most_ns = 0;
  uint32_t link_flaps = 0;
  uint64_t slow_percent = 100;  // of one node
  uint32_t queue_pair_errors = 0;
  uint32_t crashes = 0;
  // When flaps, errors and crashes come, counted from when the schedule begins. Without them, what
  // a test does takes some hundred microseconds.
  uint64_t within_ns = 600'000;

  // Nothing that a reliable connection does not get over.
  bool is_survivable() const { return queue_pair_errors == 0 && crashes == 0; }
};

inline std::string describe(const FaultSchedule& faults) {
  return fmt::format(
      "loss {} ppm, delay {} ppm of {} ns, {} flaps, slow {} %, {} queue pair errors, {} crashes",
      faults.loss_ppm, faults.delay_ppm, faults.delay_most_ns, faults.link_flaps,
      faults.slow_percent, faults.queue_pair_errors, faults.crashes);
}

// Makes a schedule happen to a simulation that has its nodes.
class ScheduledFaults {
 public:
  ScheduledFaults(const FaultSchedule& schedule, uint64_t seed, Simulation& simulation)
      : simulation_(simulation),
        random_(seed ^ kSeed),
        begin_ns_(now_ns()),
        within_ns_(schedule.within_ns) {
    simulation.fabric().set_faults({.loss_ppm = schedule.loss_ppm,
                                    .delay_ppm = schedule.delay_ppm,
                                    .delay_most = schedule.delay_most_ns * kPsPerNs});
    simulation.node(any_node()).slow_percent = schedule.slow_percent;
    for (uint32_t i = 0; i < schedule.link_flaps; ++i) {
      const uint64_t down_ns = random_.below(within_ns_);
      Fault* const fault = plan(link_goes, down_ns);
      simulation.at((begin_ns_ + down_ns + random_.below(100'000)) * kPsPerNs, link_goes, fault, 1);
    }
    for (uint32_t i = 0; i < schedule.queue_pair_errors; ++i) {
      plan(queue_pair_fails, random_.below(within_ns_));
    }
    for (uint32_t i = 0; i < schedule.crashes; ++i) {
      plan(node_crashes, random_.below(within_ns_));
    }
  }

 private:
  static constexpr uint64_t kSeed = 0x6661756c7473;

  struct Fault {
    Simulation* simulation;
    uint32_t node;
    uint64_t number;
  };

  static void link_goes(void* object, uint64_t up) {
    const Fault& fault = *static_cast<Fault*>(object);
    Simulation& simulation = *fault.simulation;
    simulation.fabric().set_link(simulation.node(fault.node), up != 0);
  }
  static void queue_pair_fails(void* object, uint64_t) {
    const Fault& fault = *static_cast<Fault*>(object);
    Rnic& rnic = fault.simulation->node(fault.node).rnic;
    std::vector<QueuePair*> ready;
    for (uint32_t number = 1; QueuePair* const qp = rnic.find_queue_pair(number); ++number) {
      if (qp->state() == IBV_QPS_RTS) ready.push_back(qp);
    }
    if (ready.empty()) return;
    rnic.fail(*ready[fault.number % ready.size()], IBV_WC_WR_FLUSH_ERR);
  }
  static void node_crashes(void* object, uint64_t) {
    const Fault& fault = *static_cast<Fault*>(object);
    fault.simulation->node(fault.node).crash();
  }

  uint32_t any_node() { return static_cast<uint32_t>(random_.below(simulation_.nodes())); }
  Fault* plan(Event::Act act, uint64_t at_ns) {
    const uint32_t node = any_node();
    faults_.push_back({&simulation_, node, random_.next()});
    simulation_.at((begin_ns_ + at_ns) * kPsPerNs, act, &faults_.back(), 0);
    return &faults_.back();
  }

  Simulation& simulation_;
  Random random_;
  uint64_t begin_ns_;
  uint64_t within_ns_;
  std::deque<Fault> faults_;
};

}  // namespace verbena::sim
