// Whether a thread that polls in vain keeps others from a CPU. Pure state: the caller has the clock
// and asks the kernel.
//
// A poller that is alone on its CPU is never away for long. One that shares it with threads that
// spin too loses the CPU for whole time slices; so a long gap between two looks is a reason to ask
// the kernel how often it gave the CPU to somebody else, and a rise of that number is evidence. One
// such loss in a while is what any busy machine has.
#pragma once

#include <algorithm>
#include <cstdint>

namespace verbena::soft {

class CrowdWatch {
 public:
  // A time slice is longer; interrupts, and what the kernel does by itself, are shorter.
  static constexpr uint64_t kGapNs = 500'000;
  // Two losses that near to each other are a crowd.
  static constexpr uint64_t kBetweenLossesNs = 100'000'000;
  // How long a crowd is believed in without further evidence: a thread that sleeps loses no CPU.
  static constexpr uint64_t kShortestCrowdNs = 100'000'000;
  static constexpr uint64_t kLongestCrowdNs = 1'600'000'000;
  // After that the thread spins again. A loss that soon says that the crowd never went.
  static constexpr uint64_t kProbationNs = 50'000'000;

  // After empty polls. True: pass the thread's involuntary context switches to count().
  bool suspects(uint64_t now_ns) {
    const bool gap = now_ns - last_poll_ns_ >= kGapNs;
    last_poll_ns_ = now_ns;
    return gap || !counted_;
  }
  void count(uint64_t now_ns, uint64_t switches) {
    const bool lost = counted_ && switches != switches_;
    counted_ = true;
    switches_ = switches;
    if (lost) note_loss(now_ns);
  }
  bool crowded(uint64_t now_ns) const { return now_ns < crowded_until_ns_; }

 private:
  void note_loss(uint64_t now_ns) {
    const bool near = lost_ && now_ns - last_loss_ns_ < kBetweenLossesNs;
    lost_ = true;
    last_loss_ns_ = now_ns;
    if (crowded(now_ns)) {
      crowded_until_ns_ = now_ns + crowd_ns_;
    } else if (crowded_until_ns_ != 0 && now_ns - crowded_until_ns_ < kProbationNs) {
      crowd_ns_ = std::min(2 * crowd_ns_, kLongestCrowdNs);
      crowded_until_ns_ = now_ns + crowd_ns_;
    } else if (near) {
      crowd_ns_ = kShortestCrowdNs;
      crowded_until_ns_ = now_ns + crowd_ns_;
    }
  }

  uint64_t last_poll_ns_ = 0;
  uint64_t switches_ = 0;
  bool counted_ = false;
  bool lost_ = false;
  uint64_t last_loss_ns_ = 0;
  uint64_t crowd_ns_ = kShortestCrowdNs;
  uint64_t crowded_until_ns_ = 0;  // 0: never
};

// Whether pauses help. A program may hold a lock while it polls, and another thread may need that
// lock to post what would end the pause; so one whose pauses nobody ends spins for a while, as it
// would have without them.
class PauseBudget {
 public:
  static constexpr uint32_t kMostInVain = 8;
  static constexpr uint64_t kShortestRestNs = 4'000'000;
  static constexpr uint64_t kLongestRestNs = 64'000'000;

  bool allows(uint64_t now_ns) const { return now_ns >= rests_until_ns_; }
  // `woken`: by a delivery, before its time was over.
  void note_pause(uint64_t now_ns, bool woken) {
    if (woken) {
      in_vain_ = 0;
      rest_ns_ = kShortestRestNs;
    } else if (++in_vain_ == kMostInVain) {
      in_vain_ = 0;
      rests_until_ns_ = now_ns + rest_ns_;
      rest_ns_ = std::min(2 * rest_ns_, kLongestRestNs);
    }
  }

 private:
  uint32_t in_vain_ = 0;  // in a row
  uint64_t rest_ns_ = kShortestRestNs;
  uint64_t rests_until_ns_ = 0;
};

// When a thread has seen all of the completion queues that it polls empty: one that is empty again,
// and nothing was delivered to any in between.
class PollRound {
 public:
  // `delivered`: since the round began. The first poll, and the first one after a delivery, begins
  // a round. A queue that the thread does not poll any more cannot hold up a round for ever.
  enum class Step : uint8_t { kBegins, kGoesOn, kEnds };
  Step polled(const void* queue, bool delivered) {
    if (delivered || first_ == nullptr || ++polls_ > kMostPolls) {
      first_ = queue;
      polls_ = 0;
      return Step::kBegins;
    }
    return queue == first_ ? Step::kEnds : Step::kGoesOn;
  }

 private:
  static constexpr uint32_t kMostPolls = 4096;
  const void* first_ = nullptr;  // compared only
  uint32_t polls_ = 0;
};

}  // namespace verbena::soft
