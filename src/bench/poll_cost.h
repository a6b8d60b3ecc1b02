// What a message costs the CPU of one side: the instructions, or where the machine does not count
// them the cycles of the time stamp counter, that a poll takes which found messages, divided by how
// many it found.
//
// That covers finding the message, the handler, and posting the answer (or the next request), and
// on the software RNIC moving the bytes too. It leaves out the polls that found nothing: they are
// what a side does that has nothing to do. The median over all polls is taken, so that the moments
// in which the system took the CPU away do not count.
//
// Reading a counter twice per poll slows the poll, so this is a phase of its own, in which no
// latency is measured. In a node that callgrind runs, it counts instead (callgrind_counter.h).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "src/base/histogram.h"
#include "src/base/instruction_count.h"
#include "src/base/tsc.h"
#include "src/bench/callgrind_counter.h"

namespace verbena::bench {

enum class CpuUnit : uint8_t { kCycles, kInstructions };

struct CpuCost {
  CpuUnit unit = CpuUnit::kCycles;
  double per_message = 0;
};

// The cost that one thread found, and over how many messages.
struct WeighedCost {
  CpuCost cost;
  uint64_t messages = 0;
};

// What all threads of a side say together: the mean, each by its messages. Nothing if there is
// none; costs of 0 are those of a side that does nothing (READ).
std::optional<CpuCost> mean_cost(const std::vector<WeighedCost>& costs);

class PollCost {
 public:
  // Instructions where the machine counts them, else cycles. Belongs to the calling thread.
  explicit PollCost(Side side);

  // Calls poll(), which returns how many messages it took, and notes what it cost.
  template <typename Poll>
  uint32_t measure(Poll&& poll) {
    const uint64_t start = begin();
    const uint32_t messages = poll();
    end(start, messages);
    return messages;
  }

  // Nothing if no message was seen.
  std::optional<CpuCost> per_message() const;
  uint64_t messages() const { return cost_.count(); }

 private:
  uint64_t begin() {
    if (callgrind_) [[unlikely]] {
      CallgrindCounter::begin();
      return 0;
    }
    return read();
  }
  void end(uint64_t start, uint32_t messages) {
    if (callgrind_) [[unlikely]] {
      callgrind_->end(messages);
      return;
    }
    const uint64_t cost = read() - start;
    if (messages > 0) {
      // The histogram keeps whole numbers.
      cost_.record((cost > overhead_ ? cost - overhead_ : 0) / messages, messages);
    }
  }
  uint64_t read() const {
    if (VirtualTime* const time = VirtualTime::current()) return time->cycles();
    return instructions_ ? instructions_->read() : read_tsc_ordered();
  }

  std::optional<CallgrindCounter> callgrind_;
  std::optional<InstructionCounter> instructions_;
  uint64_t overhead_ = 0;  // of reading twice with nothing in between
  Histogram cost_;
};

}  // namespace verbena::bench
