#include "src/bench/poll_cost.h"

#include <utility>

namespace verbena::bench {

PollCost::PollCost(Side side) {
  if (VirtualTime::current() != nullptr) return;
  if (CallgrindCounter::running()) {
    callgrind_.emplace(side);
    return;
  }
  if (InstructionCounter::available()) {
    Result<InstructionCounter> counter = InstructionCounter::open();
    if (counter.ok()) instructions_ = std::move(*counter);
  }
  constexpr int kTries = 1000;
  Histogram empty;
  for (int i = 0; i < kTries; ++i) {
    const uint64_t start = read();
    empty.record(read() - start);
  }
  overhead_ = empty.quantile(0.5);
}

std::optional<CpuCost> mean_cost(const std::vector<WeighedCost>& costs) {
  if (costs.empty()) return std::nullopt;
  CpuCost mean{costs.front().cost.unit, 0};
  double messages = 0;
  for (const WeighedCost& cost : costs) {
    // Of two kinds of machine: there is no mean of instructions and cycles.
    if (cost.cost.unit != mean.unit) return std::nullopt;
    mean.per_message += cost.cost.per_message * static_cast<double>(cost.messages);
    messages += static_cast<double>(cost.messages);
  }
  mean.per_message = messages > 0 ? mean.per_message / messages : 0;
  return mean;
}

std::optional<CpuCost> PollCost::per_message() const {
  if (cost_.count() == 0) return std::nullopt;
  return CpuCost{instructions_ ? CpuUnit::kInstructions : CpuUnit::kCycles,
                 static_cast<double>(cost_.quantile(0.5))};
}

}  // namespace verbena::bench
