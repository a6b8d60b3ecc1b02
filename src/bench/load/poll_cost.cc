#include "src/bench/load/poll_cost.h"

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
  for (int i = 0; i < kTries; ++i) measure([] { return 1u; });
  overhead_ = {.instructions = counted_.quantile(0.5), .cycles = cycles_.quantile(0.5)};
  cycles_.clear();
  counted_.clear();
}

std::optional<CpuCost> mean_cost(const std::vector<WeighedCost>& costs) {
  if (costs.empty()) return std::nullopt;
  CpuCost sum{.cycles = 0, .instructions = 0};
  double messages = 0;
  for (const WeighedCost& cost : costs) {
    const auto weight = static_cast<double>(cost.messages);
    sum.cycles += cost.cost.cycles * weight;
    if (!cost.cost.instructions) sum.instructions.reset();
    if (sum.instructions) *sum.instructions += *cost.cost.instructions * weight;
    messages += weight;
  }
  messages = std::max(messages, 1.0);
  sum.cycles /= messages;
  if (sum.instructions) *sum.instructions /= messages;
  return sum;
}

std::optional<CpuCost> PollCost::per_message() const {
  if (messages() == 0) return std::nullopt;
  CpuCost cost{.cycles = static_cast<double>(cycles_.quantile(0.5))};
  if (instructions_) cost.instructions = static_cast<double>(counted_.quantile(0.5));
  return cost;
}

}  // namespace verbena::bench
