// Contenders that take turns, and what their medians say about each other.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "verbena/status.h"

namespace verbena::bench::baselines {

// Something that is measured in every round.
struct Contender {
  std::string name;
  std::string unit;
  std::function<Result<double>()> measure;
  std::vector<double> values{};        // one per round
  std::vector<double> hand_offs_ns{};  // what a cache line took from CPU to CPU meanwhile
};

// A promise about two contenders, or about one and a fixed number.
struct Target {
  std::string name;
  std::string ours;
  std::string peer;  // empty: the median of `ours` itself is what is limited
  double limit = 0;
  bool at_least = false;  // else at most
  // The ratio is how many times as fast `ours` is: the peer's time to ours.
  bool times_faster = false;
};

struct Verdict {
  Target target;
  double ratio = 0;
  double ours = 0;
  double peer = 0;
  size_t rounds = 0;  // compared
  bool holds = false;
};

class Comparison {
 public:
  // `hand_off_ns` measures what a cache line takes from one CPU to the other: a virtual machine's
  // CPUs share a cache at one time and none at another, and all that two processes do for each
  // other is several times as fast then.
  Comparison(std::vector<Contender> contenders, std::function<Result<double>()> hand_off_ns)
      : contenders_(std::move(contenders)), hand_off_ns_(std::move(hand_off_ns)) {}

  // One measurement of each, in turn; every second round backwards, so that a machine that becomes
  // slower or faster meanwhile treats all alike. A measurement in which the hand-off changed is
  // repeated, a few times at most.
  Status run_round(uint64_t round, const std::function<void(const std::string& name)>& begins);

  const std::vector<Contender>& contenders() const { return contenders_; }
  // The ratio is the median of the rounds' ratios: both of a round were measured close together.
  // Rounds in which the hand-off changed in between do not count, unless it did so in all.
  Verdict judge(const Target& target) const;

 private:
  // One measurement and the hand-off around it.
  struct Measured {
    double value = 0;
    double before_ns = 0;
    double after_ns = 0;
  };
  Result<Measured> measure(const Contender& contender) const;
  const Contender& find(const std::string& name) const;

  std::vector<Contender> contenders_;
  std::function<Result<double>()> hand_off_ns_;
};

// The list that build/bench-peers.json holds.
nlohmann::json to_json(const std::vector<Verdict>& verdicts, const Comparison& comparison);

}  // namespace verbena::bench::baselines
