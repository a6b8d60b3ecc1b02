#include "src/device/sim/usage.h"

#include <algorithm>
#include <iterator>

#include "src/base/assert.h"
#include "src/device/sim/fabric.h"
#include "src/device/sim/simulated_node.h"
#include "src/device/sim/simulation.h"

namespace verbena::sim {

namespace {

struct NodeUnitText {
  NodeUnit unit;
  const char* text;
  const char* key;
};

constexpr NodeUnitText kNodeUnitTexts[] = {
    {NodeUnit::kProcessor, "CPU", "cpu"},
    {NodeUnit::kBusDown, "bus to RNIC", "bus_down"},
    {NodeUnit::kBusUp, "bus to memory", "bus_up"},
    {NodeUnit::kReads, "DMA reads", "reads"},
    {NodeUnit::kDoorbells, "doorbells", "doorbells"},
    {NodeUnit::kQueuePair, "queue pair", "queue_pair"},
    {NodeUnit::kSendingSide, "sending side", "sending_side"},
    {NodeUnit::kReceivingSide, "receiving side", "receiving_side"},
    {NodeUnit::kAtomics, "atomic unit", "atomics"},
    {NodeUnit::kLinkOut, "link out", "link_out"},
    {NodeUnit::kLinkIn, "link in", "link_in"},
};
static_assert(std::size(kNodeUnitTexts) == kNodeUnits);

const NodeUnitText& node_unit_text(NodeUnit unit) {
  const NodeUnitText& entry = kNodeUnitTexts[static_cast<size_t>(unit)];
  VERBENA_DEBUG_ASSERT(entry.unit == unit);
  return entry;
}

}  // namespace

const char* text_of(NodeUnit unit) { return node_unit_text(unit).text; }
const char* key_of(NodeUnit unit) { return node_unit_text(unit).key; }

UsageMeter::UsageMeter(Simulation& simulation) : simulation_(simulation), begin_(simulation.now()) {
  for (size_t node = 0; node < simulation.nodes(); ++node) before_.push_back(busy_of(node));
}

Time UsageMeter::elapsed() const { return simulation_.now() - begin_; }

UsageMeter::NodeBusy UsageMeter::busy_of(size_t number) const {
  const Node& node = simulation_.node(number);
  const Time now = simulation_.now();
  NodeBusy busy{.rnic = node.rnic.busy(),
                .link_out = simulation_.fabric().busy_to_switch(node),
                .link_in = simulation_.fabric().busy_from_switch(node),
                .threads = {}};
  for (const Fiber* fiber : node.threads) {
    // Its clock is ahead by what it was charged last.
    busy.threads[fiber] = fiber->busy - (std::max(now, fiber->local) - now);
  }
  return busy;
}

std::vector<NodeUsage> UsageMeter::read() const {
  const double elapsed = static_cast<double>(std::max<Time>(this->elapsed(), 1));
  std::vector<NodeUsage> nodes(before_.size());
  for (size_t number = 0; number < nodes.size(); ++number) {
    NodeUsage& usage = nodes[number];
    const NodeBusy& before = before_[number];
    const NodeBusy now = busy_of(number);
    const auto note = [&](NodeUnit unit, Time from, Time to) {
      double& share = usage.share[static_cast<size_t>(unit)];
      const double one = static_cast<double>(to - from) / elapsed;
      if (one <= share) return false;
      share = one;
      return true;
    };
    for (const auto& [fiber, busy] : now.threads) {
      const auto from = before.threads.find(fiber);
      if (note(NodeUnit::kProcessor, from == before.threads.end() ? 0 : from->second, busy)) {
        usage.thread = fiber->name;
      }
    }
    for (size_t i = 0; i < now.rnic.queue_pairs.size(); ++i) {
      const std::vector<Time>& earlier = before.rnic.queue_pairs;
      note(NodeUnit::kQueuePair, i < earlier.size() ? earlier[i] : 0, now.rnic.queue_pairs[i]);
    }
    note(NodeUnit::kBusDown, before.rnic.bus_down, now.rnic.bus_down);
    note(NodeUnit::kBusUp, before.rnic.bus_up, now.rnic.bus_up);
    note(NodeUnit::kReads, before.rnic.reads, now.rnic.reads);
    note(NodeUnit::kDoorbells, before.rnic.doorbells, now.rnic.doorbells);
    note(NodeUnit::kSendingSide, before.rnic.sending, now.rnic.sending);
    note(NodeUnit::kReceivingSide, before.rnic.receiving, now.rnic.receiving);
    note(NodeUnit::kAtomics, before.rnic.atomics, now.rnic.atomics);
    note(NodeUnit::kLinkOut, before.link_out, now.link_out);
    note(NodeUnit::kLinkIn, before.link_in, now.link_in);
  }
  return nodes;
}

}  // namespace verbena::sim
