// What a message costs the CPU of one side: the cycles of the time stamp counter, and where the
// machine counts them the instructions, that a poll takes which found messages, divided by how many
// it found.
//
// That covers finding the message, the handler, and posting the answer (or the next request), and
// on the software RNIC moving the bytes too. It leaves out the polls that found nothing: they are
// what a side does that has nothing to do. The median over all polls is taken, so that the moments
// in which the system took the CPU away do not count.
//
// Reading a counter twice per poll slows the poll, so this is a phase of its own, in which no
// latency is measured. In a node that callgrind runs, it counts instead (callgrind_counter.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "src/base/histogram.h"
#include "src/base/instruction_count.h"
#include "src/base/tsc.h"
#include "src/bench/load/callgrind_counter.h"

namespace verbena::bench {

// Of a message.
struct CpuCost {
  double cycles = 0;
  std::optional<double> instructions{};  // where the machine counts them
  bool operator==(const CpuCost&) const = default;
};

// The cost that one thread found, and over how many messages.
struct WeighedCost {
  CpuCost cost;
  uint64_t messages = 0;
};

// What all threads of a side say together: the mean, each by its messages; instructions where all
// count them. Nothing if there is none; costs of 0 are those of a side that does nothing (READ).
std::optional<CpuCost> mean_cost(const std::vector<WeighedCost>& costs);

class PollCost {
 public:
  // Belongs to the calling thread.
  explicit PollCost(Side side);

  // Calls poll(), which returns how many messages it took, and notes what it cost.
  template <typename Poll>
  uint32_t measure(Poll&& poll) {
    const Reading start = begin();
    const uint32_t messages = poll();
    end(start, messages);
    return messages;
  }

  // Nothing if no message was seen.
  std::optional<CpuCost> per_message() const;
  uint64_t messages() const { return cycles_.count(); }

  // Of the time stamp counter; in a simulation those that the thread was charged.
  static uint64_t cycles_now() {
    VirtualTime* const time = VirtualTime::current();
    return time != nullptr ? time->cycles() : read_tsc_ordered();
  }

 private:
  struct Reading {
    uint64_t instructions = 0;
    uint64_t cycles = 0;
  };

  // The counter of instructions is the slower one, so it is read outside.
  Reading begin() {
    if (callgrind_) [[unlikely]] {
      CallgrindCounter::begin();
      return {};
    }
    Reading start;
    if (instructions_) start.instructions = instructions_->read();
    start.cycles = cycles_now();
    return start;
  }
  void end(const Reading& start, uint32_t messages) {
    if (callgrind_) [[unlikely]] {
      callgrind_->end(messages);
      return;
    }
    const uint64_t cycles = cycles_now() - start.cycles;
    const uint64_t instructions = instructions_ ? instructions_->read() - start.instructions : 0;
    if (messages == 0) return;
    // The histograms keep whole numbers.
    cycles_.record((cycles - std::min(overhead_.cycles, cycles)) / messages, messages);
    counted_.record((instructions - std::min(overhead_.instructions, instructions)) / messages,
                    messages);
  }

  std::optional<CallgrindCounter> callgrind_;
  std::optional<InstructionCounter> instructions_;
  Reading overhead_;  // of measuring nothing
  Histogram cycles_;
  Histogram counted_;
};

// A poll is most of what a design compiles to, and a loop has it twice, timed and costed: both call
// this one.
template <typename Poller, typename... Take>
[[gnu::noinline]] uint32_t poll_out_of_line(Poller& poller, Take&... take) {
  return poller.poll(take...);
}

// poller.poll(take...), which returns how many messages it took; with `cost`, that measures it.
template <typename Poller, typename... Take>
uint32_t poll_costed(PollCost* cost, Poller& poller, Take&... take) {
  if (cost == nullptr) return poll_out_of_line(poller, take...);
  return cost->measure([&] { return poll_out_of_line(poller, take...); });
}

}  // namespace verbena::bench
