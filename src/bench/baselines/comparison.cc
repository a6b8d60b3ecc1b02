#include "src/bench/baselines/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/base/assert.h"
#include "src/bench/result/statistics.h"

namespace verbena::bench::baselines {

namespace {

// Between two CPUs that share a cache and two that share none lies a factor of four and more; what
// other work on the machine does to a hand-off is less.
constexpr double kSameHandOff = 1.7;
constexpr int kMostTries = 4;

bool alike(double one_ns, double other_ns) {
  return std::max(one_ns, other_ns) <= kSameHandOff * std::min(one_ns, other_ns);
}

}  // namespace

Result<Comparison::Measured> Comparison::measure(const Contender& contender) const {
  Measured measured;
  for (int tried = 0; tried < kMostTries; ++tried) {
    VERBENA_ASSIGN_OR_RETURN(measured.before_ns, hand_off_ns_());
    VERBENA_ASSIGN_OR_RETURN(measured.value, contender.measure());
    VERBENA_ASSIGN_OR_RETURN(measured.after_ns, hand_off_ns_());
    if (alike(measured.before_ns, measured.after_ns)) break;
  }
  return measured;
}

Status Comparison::run_round(uint64_t round,
                             const std::function<void(const std::string& name)>& begins) {
  for (size_t i = 0; i < contenders_.size(); ++i) {
    Contender& contender = contenders_[round % 2 == 0 ? i : contenders_.size() - 1 - i];
    begins(contender.name);
    const Result<Measured> measured = measure(contender);
    if (!measured.ok()) {
      return Status(measured.status().code(),
                    fmt::format("{}: {}", contender.name, measured.status().message()));
    }
    contender.values.push_back(measured->value);
    contender.hand_offs_ns.push_back(std::sqrt(measured->before_ns * measured->after_ns));
  }
  return Status::ok_status();
}

const Contender& Comparison::find(const std::string& name) const {
  const auto found = std::find_if(contenders_.begin(), contenders_.end(),
                                  [&](const Contender& one) { return one.name == name; });
  VERBENA_ASSERT(found != contenders_.end());
  return *found;
}

Verdict Comparison::judge(const Target& target) const {
  Verdict verdict{.target = target};
  const Contender& ours = find(target.ours);
  verdict.ours = median(ours.values);
  if (target.peer.empty()) {
    verdict.ratio = verdict.ours;
    verdict.rounds = ours.values.size();
  } else {
    const Contender& peer = find(target.peer);
    VERBENA_ASSERT(peer.values.size() == ours.values.size());
    std::vector<double> ratios;
    std::vector<double> of_like_rounds;
    for (size_t i = 0; i < ours.values.size(); ++i) {
      const double ratio = ours.values[i] / peer.values[i];
      ratios.push_back(target.times_faster ? 1 / ratio : ratio);
      if (alike(ours.hand_offs_ns[i], peer.hand_offs_ns[i]))
        of_like_rounds.push_back(ratios.back());
    }
    verdict.peer = median(peer.values);
    verdict.rounds = of_like_rounds.size();
    verdict.ratio = median(of_like_rounds.empty() ? ratios : of_like_rounds);
  }
  verdict.holds = target.at_least ? verdict.ratio >= target.limit : verdict.ratio <= target.limit;
  return verdict;
}

nlohmann::json to_json(const std::vector<Verdict>& verdicts, const Comparison& comparison) {
  nlohmann::json medians = nlohmann::json::object();
  for (const Contender& contender : comparison.contenders()) {
    medians[contender.name] = {{"median", median(contender.values)},
                               {"unit", contender.unit},
                               {"values", contender.values},
                               {"hand_offs_ns", contender.hand_offs_ns}};
  }
  nlohmann::json list = nlohmann::json::array();
  for (const Verdict& verdict : verdicts) {
    const Target& target = verdict.target;
    nlohmann::json row = {
        {"name", target.name},    {"ratio", verdict.ratio},
        {"target", target.limit}, {"at_least", target.at_least},
        {"holds", verdict.holds}, {"rounds", verdict.rounds},
        {"ours", target.ours},    {"medians", {{target.ours, medians[target.ours]}}}};
    if (target.peer.empty()) {
      row["unit"] = medians[target.ours]["unit"];
    } else {
      row["peer"] = target.peer;
      row["medians"][target.peer] = medians[target.peer];
    }
    list.push_back(std::move(row));
  }
  return list;
}

}  // namespace verbena::bench::baselines
