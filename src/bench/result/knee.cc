#include "src/bench/result/knee.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "src/bench/experiment/common_axes.h"
#include "src/bench/experiment/workload.h"
#include "src/bench/result/result_texts.h"

namespace verbena::bench {

namespace {

bool is_lower(const PointResult* a, const PointResult* b) {
  return *a->offered_rate_per_s() < *b->offered_rate_per_s();
}

Knee knee_of(std::vector<const PointResult*> sweep) {
  std::sort(sweep.begin(), sweep.end(), is_lower);
  Knee found{.lowest = sweep.front()};
  const double most_p99_ns = kKneeLatencyFactor * found.lowest->p99_ns().median;
  for (size_t i = 0; i < sweep.size(); ++i) {
    if (sweep[i]->saturated() || sweep[i]->p99_ns().median > most_p99_ns) continue;
    found.knee = sweep[i];
    found.next = i + 1 < sweep.size() ? sweep[i + 1] : nullptr;
  }
  return found;
}

std::string name_of(const Knee& found) {
  Point point = found.lowest->point;
  point.arrival_rate_per_s = 0;  // the sweep is over all of them
  return point.workload->text(point);
}

// ", arrivals even": by what it differs from others of the same name.
std::string difference_text(const Knee& found, const std::vector<Knee>& knees) {
  const Point& own = found.lowest->point;
  std::string text;
  for (const Axis& axis : own.workload->traits().axes) {
    const bool differs = std::any_of(knees.begin(), knees.end(), [&](const Knee& other) {
      return name_of(other) == name_of(found) && axis.get(other.lowest->point) != axis.get(own) &&
             axis.name != kArrivalRateAxis.name;
    });
    if (differs) text += fmt::format(", {} {}", axis.name, axis.text(axis.get(own)));
  }
  return text;
}

std::string knee_text(const Knee& found, const std::vector<Knee>& knees) {
  const std::string what =
      fmt::format("knee of {}{}", name_of(found), difference_text(found, knees));
  if (found.knee == nullptr) {
    return fmt::format("{}: below {}, which is saturated; add lower rates to --arrival-rate\n",
                       what, rate_text(*found.lowest->offered_rate_per_s()));
  }
  const std::string at =
      fmt::format("{}: {} offered, p99 {}", what, rate_text(*found.knee->offered_rate_per_s()),
                  time_text(found.knee->p99_ns().median));
  if (found.next == nullptr) {
    return fmt::format("{} or above, where the sweep ends; add higher rates to --arrival-rate\n",
                       at);
  }
  const std::string next_rate = rate_text(*found.next->offered_rate_per_s());
  if (found.next->saturated()) return fmt::format("{}; {} is saturated\n", at, next_rate);
  return fmt::format("{}; at {} it is {}, more than {} times that of {}\n", at, next_rate,
                     time_text(found.next->p99_ns().median), kKneeLatencyFactor,
                     rate_text(*found.lowest->offered_rate_per_s()));
}

}  // namespace

std::vector<Knee> find_knees(const std::vector<PointResult>& results) {
  std::map<std::vector<uint64_t>, size_t> numbers;
  std::vector<std::vector<const PointResult*>> sweeps;
  for (const PointResult& result : results) {
    if (!result.offered_rate_per_s() || result.errors > 0) continue;
    Point at_any_rate = result.point;
    at_any_rate.arrival_rate_per_s = 0;
    const auto [place, added] = numbers.try_emplace(key_of(at_any_rate), sweeps.size());
    if (added) sweeps.emplace_back();
    sweeps[place->second].push_back(&result);
  }
  std::vector<Knee> knees;
  for (const std::vector<const PointResult*>& sweep : sweeps) {
    if (sweep.size() > 1) knees.push_back(knee_of(sweep));
  }
  return knees;
}

std::string knees_text(const std::vector<PointResult>& results) {
  const std::vector<Knee> knees = find_knees(results);
  std::string text;
  for (const Knee& knee : knees) text += knee_text(knee, knees);
  return text;
}

}  // namespace verbena::bench
