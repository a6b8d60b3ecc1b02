#include "src/bench/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "src/bench/interrupt.h"

namespace verbena::bench {

namespace {

class Session {
 public:
  Session(const Plan& plan, const Device& device, const ProtectionDomain& domain,
          ControlConnection& control, const SessionHooks& hooks)
      : plan_(plan), device_(device), domain_(domain), control_(control), hooks_(hooks) {}

  std::vector<PointResult> measure() {
    for (const PointGroup& group : point_groups(plan_)) {
      std::vector<PointResult> results;
      for (const Point& point : group)
        results.push_back({.point = point, .verify = plan_.run.verify});
      for (uint32_t run = 0; run < plan_.runs && !ended_; ++run) {
        for (PointResult& result : results) {
          if (result.errors == 0 && !ended_) measure_run(result, run, results);
        }
      }
      finished_ = with(results);
      if (ended_) break;
    }
    return std::move(finished_);
  }

 private:
  void measure_run(PointResult& result, uint32_t run, const std::vector<PointResult>& group) {
    hooks_.begins(result.point, run);
    uint64_t lost = 0;
    const Result<RunResult> measured =
        run_point(device_, domain_, control_, result.point, plan_.run, &lost);
    ended_ = interrupted();
    if (measured.ok()) {
      result.runs.push_back(*measured);
      result.point.layout = measured->layout;
      result.errors += measured->errors;
      if (measured->errors > 0) {
        result.error = fmt::format("{} of {} messages arrived with other bytes than were sent",
                                   measured->errors, 2 * measured->requests);
      }
    } else if (!ended_) {
      result.errors = std::max<uint64_t>(lost, 1);
      result.error = measured.status().message();
      if (control_.peer_closed()) {
        ended_ = true;
        const std::string reason = hooks_.reason_of_death();
        if (!reason.empty()) result.error = reason;
      }
    }
    hooks_.ended(with(group));
  }

  // All results so far and those of `group`, without the points that did not come to anything yet.
  std::vector<PointResult> with(const std::vector<PointResult>& group) const {
    std::vector<PointResult> all = finished_;
    std::copy_if(group.begin(), group.end(), std::back_inserter(all),
                 [](const PointResult& result) { return result.measured() || result.errors > 0; });
    return all;
  }

  const Plan& plan_;
  const Device& device_;
  const ProtectionDomain& domain_;
  ControlConnection& control_;
  const SessionHooks& hooks_;
  std::vector<PointResult> finished_;
  bool ended_ = false;
};

}  // namespace

uint64_t count_runs(const Plan& plan) {
  uint64_t points = 0;
  for (const PointGroup& group : point_groups(plan)) points += group.size();
  return points * plan.runs;
}

std::vector<PointResult> measure_plan(const Plan& plan, const Device& device,
                                      const ProtectionDomain& domain, ControlConnection& control,
                                      const SessionHooks& hooks) {
  return Session(plan, device, domain, control, hooks).measure();
}

}  // namespace verbena::bench
