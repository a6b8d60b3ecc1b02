// How busy the units of simulated nodes are: which of them limits what a cluster does.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "src/device/sim/event_queue.h"
#include "src/device/sim/rnic.h"

namespace verbena::sim {

struct Fiber;
class Simulation;

// What serves one after the other. Of threads and of queue pairs a node has several.
enum class NodeUnit : uint8_t {
  kProcessor,  // a thread, without polls that wait for something
  kBusDown,
  kBusUp,
  kReads,
  kDoorbells,
  kQueuePair,
  kSendingSide,
  kReceivingSide,
  kAtomics,
  kLinkOut,
  kLinkIn,
};
inline constexpr size_t kNodeUnits = static_cast<size_t>(NodeUnit::kLinkIn) + 1;

const char* text_of(NodeUnit unit);
// As a key in files: "cpu", "bus_down".
const char* key_of(NodeUnit unit);

// Of one node: the share of the time in which each unit worked, from 0 to 1; of threads and of
// queue pairs, the busiest one's.
struct NodeUsage {
  std::array<double, kNodeUnits> share{};
  std::string thread;  // the busiest one's name
};

// Measures from when it is made on.
class UsageMeter {
 public:
  explicit UsageMeter(Simulation& simulation);

  // Until now, by node. Threads that have ended meanwhile are left out.
  std::vector<NodeUsage> read() const;
  Time elapsed() const;

 private:
  struct NodeBusy {
    RnicBusy rnic;
    Time link_out = 0;
    Time link_in = 0;
    std::unordered_map<const Fiber*, Time> threads;
  };

  NodeBusy busy_of(size_t node) const;

  Simulation& simulation_;
  Time begin_;
  std::vector<NodeBusy> before_;
};

}  // namespace verbena::sim
