#include "src/bench/poll_cost.h"

#include <utility>

namespace verbena::bench {

PollCost::PollCost() {
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

std::optional<CpuCost> PollCost::per_message() const {
  if (cost_.count() == 0) return std::nullopt;
  return CpuCost{instructions_ ? CpuUnit::kInstructions : CpuUnit::kCycles,
                 static_cast<double>(cost_.quantile(0.5))};
}

}  // namespace verbena::bench
