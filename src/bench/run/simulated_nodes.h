// The nodes of one run of one point, in virtual time: the same threads as those of processes, as
// fibers of simulated nodes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/bench/experiment/plan.h"
#include "src/bench/run/node_group.h"
#include "src/bench/run/point_node.h"
#include "src/bench/run/run.h"
#include "src/device/sim/simulation.h"
#include "verbena/connection.h"
#include "verbena/device.h"

namespace verbena::bench {

// VERBENA_SEED, or 1: what is simulated does not change by itself.
uint64_t simulation_seed();

// The standard durations are those of real devices. In virtual time fewer messages say as much, and
// a second would take minutes: where `device` is a simulated one and the user named no length
// (`chosen`), a number of messages takes the place of the plan's duration.
void fit_to_simulation(const std::string& device, bool chosen, Plan* plan);

class SimulatedNodes final : public PointNodes {
 public:
  // The calling thread is in virtual time from now on until these are gone.
  // `copy_all`: every byte of payloads moves, for those who verify them.
  SimulatedNodes(uint64_t seed, bool copy_all);
  ~SimulatedNodes() override;

  // Nodes with the RNIC `device`, "sim:PROFILE".
  Status add(const std::string& device, uint32_t count);
  SimulationCounts counts() const;
  // Of the first node's device.
  const DeviceInfo& info() const { return nodes_.front()->device.info(); }
  sim::Simulation& simulation() { return simulation_; }

  uint32_t size() const override { return static_cast<uint32_t>(nodes_.size()); }
  const Hello& hello(uint32_t) const override { return hello_; }
  std::vector<pid_t> processes() const override { return {}; }
  // Ends all threads of nodes that have not crashed. kInternal: some hang.
  Status leave();
  // Whether each node that has not crashed has finished its step, or reported a failure.
  bool survivors_settled();

  Status tell(uint32_t number, const Message& message) override;
  Status collect(MessageKind kind, int64_t timeout_ns, uint64_t stall_ns,
                 const Take& take) override;

 private:
  struct Node {
    Device device;
    ProtectionDomain domain;
    std::unique_ptr<PointNode> point;
  };

  Status failure();
  // Asked often: looks at a node that has finished its step no more.
  bool all_settled();

  uint64_t begun_ns_;
  sim::Simulation simulation_;
  JobSecret secret_;
  Hello hello_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::shared_ptr<const JobWiring> wiring_;
  uint32_t settled_ = 0;  // so many nodes, the first ones, have finished their step
};

}  // namespace verbena::bench
