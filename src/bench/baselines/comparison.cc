#include "src/bench/baselines/comparison.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/base/assert.h"
#include "src/bench/result/statistics.h"

namespace verbena::bench::baselines {

Status Comparison::run_round(uint64_t round,
                             const std::function<void(const std::string& name)>& begins) {
  for (size_t i = 0; i < contenders_.size(); ++i) {
    Contender& contender = contenders_[round % 2 == 0 ? i : contenders_.size() - 1 - i];
    begins(contender.name);
    const Result<double> value = contender.measure();
    if (!value.ok()) {
      return Status(value.status().code(),
                    fmt::format("{}: {}", contender.name, value.status().message()));
    }
    contender.values.push_back(*value);
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
  } else {
    const Contender& peer = find(target.peer);
    VERBENA_ASSERT(peer.values.size() == ours.values.size());
    std::vector<double> ratios;
    for (size_t i = 0; i < ours.values.size(); ++i) {
      const double ratio = ours.values[i] / peer.values[i];
      ratios.push_back(target.times_faster ? 1 / ratio : ratio);
    }
    verdict.peer = median(peer.values);
    verdict.ratio = median(ratios);
  }
  verdict.holds = target.at_least ? verdict.ratio >= target.limit : verdict.ratio <= target.limit;
  return verdict;
}

nlohmann::json to_json(const std::vector<Verdict>& verdicts, const Comparison& comparison) {
  nlohmann::json medians = nlohmann::json::object();
  for (const Contender& contender : comparison.contenders()) {
    medians[contender.name] = {{"median", median(contender.values)},
                               {"unit", contender.unit},
                               {"values", contender.values}};
  }
  nlohmann::json list = nlohmann::json::array();
  for (const Verdict& verdict : verdicts) {
    const Target& target = verdict.target;
    nlohmann::json row = {{"name", target.name},
                          {"ratio", verdict.ratio},
                          {"target", target.limit},
                          {"at_least", target.at_least},
                          {"holds", verdict.holds},
                          {"ours", target.ours},
                          {"medians", {{target.ours, medians[target.ours]}}}};
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
