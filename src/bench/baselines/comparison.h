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
  std::vector<double> values{};  // one per round
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
  bool holds = false;
};

class Comparison {
 public:
  explicit Comparison(std::vector<Contender> contenders) : contenders_(std::move(contenders)) {}

  // One measurement of each, in turn; every second round backwards, so that a machine that becomes
  // slower or faster meanwhile treats all alike.
  Status run_round(uint64_t round, const std::function<void(const std::string& name)>& begins);

  const std::vector<Contender>& contenders() const { return contenders_; }
  // The ratio is the median of the rounds' ratios: both of a round were measured close together.
  Verdict judge(const Target& target) const;

 private:
  const Contender& find(const std::string& name) const;
  std::vector<Contender> contenders_;
};

// The list that build/bench-peers.json holds.
nlohmann::json to_json(const std::vector<Verdict>& verdicts, const Comparison& comparison);

}  // namespace verbena::bench::baselines
