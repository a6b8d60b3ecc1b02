#include "src/bench/run/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "src/bench/experiment/workload.h"
#include "src/bench/run/interrupt.h"
#include "src/bench/run/run.h"

namespace verbena::bench {

namespace {

// What an earlier session has found out about the point; null if nothing that holds.
const PointResult* find_before(const std::vector<PointResult>& before, uint64_t number) {
  const auto found = std::find_if(before.begin(), before.end(), [&](const PointResult& result) {
    return result.number == number && result.errors == 0;
  });
  return found == before.end() ? nullptr : &*found;
}

// Of a run without any operation no latency can be told, and 0 ns would be the best one of all.
Status nothing_measured(const Point& point) {
  return {StatusCode::kUnavailable,
          fmt::format("nothing was answered in the measured time, so there is no latency to tell; "
                      "raise --duration{}",
                      point.arrival_rate_per_s > 0 ? " or --arrival-rate" : "")};
}

class Session {
 public:
  Session(uint32_t runs, const RunOptions& options, NodePool& pool, const SessionHooks& hooks,
          const std::vector<PointResult>& before)
      : runs_(runs), options_(options), pool_(pool), hooks_(hooks), before_(before) {}

  std::vector<PointResult> measure(const std::vector<PointGroup>& groups) {
    uint64_t number = 0;
    for (const PointGroup& group : groups) {
      std::vector<PointResult> results;
      for (const Point& point : group) {
        const PointResult* done = find_before(before_, number);
        results.push_back(done != nullptr ? *done
                                          : PointResult{.point = point,
                                                        .number = number,
                                                        .verify = options_.verify,
                                                        .variants = options_.variants});
        ++number;
      }
      for (PointResult& result : results) {
        // An earlier session ended before its profile, or was to make none.
        if (!hooks_.finishes || !is_complete(result) || !result.profile.is_null() || ended_)
          continue;
        finish(result);
        hooks_.ended(with_later(results));
      }
      for (uint32_t run = 0; run < runs_ && !ended_; ++run) {
        for (PointResult& result : results) {
          if (result.errors == 0 && result.runs.size() <= run && !ended_) {
            measure_run(result, run, results);
          }
        }
      }
      finished_ = with(results);
    }
    return std::move(finished_);
  }

 private:
  bool is_complete(const PointResult& result) const {
    return result.errors == 0 && result.runs.size() >= runs_;
  }
  void finish(PointResult& result) {
    hooks_.finishes(result);
    ended_ = interrupted();
  }

  void measure_run(PointResult& result, uint32_t run, const std::vector<PointResult>& group) {
    hooks_.begins(result.point, run);
    RunFailure failure;
    Result<RunResult> measured = run_point(pool_, result.point, options_, run, &failure);
    if (measured.ok() && measured->requests == 0) measured = nothing_measured(result.point);
    ended_ = interrupted();
    if (measured.ok()) {
      result.runs.push_back(*measured);
      result.point.workload->adopt(result.point, measured->layout);
      result.errors += measured->errors;
      if (measured->errors > 0) {
        result.error =
            fmt::format("{} of {} messages arrived corrupted: other bytes than were sent",
                        measured->errors, 2 * measured->requests);
      }
    } else if (!ended_) {
      result.errors = std::max<uint64_t>(failure.lost, 1);
      result.error = measured.status().message();
      ended_ = !failure.nodes_remain;
    }
    if (hooks_.finishes && is_complete(result) && !ended_) finish(result);
    hooks_.ended(with_later(group));
  }

  // All results so far and those of `group`, without the points that did not come to anything yet.
  std::vector<PointResult> with(const std::vector<PointResult>& group) const {
    std::vector<PointResult> all = finished_;
    std::copy_if(group.begin(), group.end(), std::back_inserter(all),
                 [](const PointResult& result) { return result.measured() || result.errors > 0; });
    return all;
  }

  // And what an earlier session has of later points, so that no file ever has less than before.
  std::vector<PointResult> with_later(const std::vector<PointResult>& group) const {
    std::vector<PointResult> all = with(group);
    std::copy_if(before_.begin(), before_.end(), std::back_inserter(all),
                 [&](const PointResult& result) {
                   return result.number > group.back().number && result.errors == 0;
                 });
    return all;
  }

  uint32_t runs_;
  const RunOptions& options_;
  NodePool& pool_;
  const SessionHooks& hooks_;
  const std::vector<PointResult>& before_;
  std::vector<PointResult> finished_;
  bool ended_ = false;
};

}  // namespace

uint64_t count_runs(const std::vector<PointGroup>& groups, uint32_t runs,
                    const std::vector<PointResult>& before) {
  uint64_t points = 0;
  for (const PointGroup& group : groups) points += group.size();
  uint64_t count = points * runs;
  for (uint64_t number = 0; number < points; ++number) {
    const PointResult* done = find_before(before, number);
    if (done != nullptr) count -= std::min<uint64_t>(done->runs.size(), runs);
  }
  return count;
}

std::vector<PointResult> measure_points(const std::vector<PointGroup>& groups, uint32_t runs,
                                        const RunOptions& options, NodePool& pool,
                                        const SessionHooks& hooks,
                                        const std::vector<PointResult>& before) {
  return Session(runs, options, pool, hooks, before).measure(groups);
}

}  // namespace verbena::bench
