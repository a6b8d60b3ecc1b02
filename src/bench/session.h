// Carries out a plan with a responder that is there already.
#pragma once

#include <functional>
#include <vector>

#include "src/bench/plan.h"
#include "src/bench/point_result.h"
#include "verbena/connection.h"
#include "verbena/device.h"
#include "verbena/status.h"

namespace verbena::bench {

struct SessionHooks {
  // A run begins; the number of runs in all is count_runs().
  std::function<void(const Point& point, uint32_t run)> begins = [](const Point&, uint32_t) {};
  // A run ended; these are all results so far, of points with at least one run or a failure.
  std::function<void(const std::vector<PointResult>& results)> ended =
      [](const std::vector<PointResult>&) {};
  // What is behind an error that a lost connection explains badly, such as "the responder's process
  // was killed by signal 9"; empty if nothing is.
  std::function<std::string()> reason_of_death = [] { return std::string(); };
};

uint64_t count_runs(const Plan& plan);

// Measures every point, and goes on with the next one where one fails; stops where nothing further
// can succeed (the responder is gone, the user interrupted). The results are in the order of
// point_groups(); what was measured before an end is among them.
std::vector<PointResult> measure_plan(const Plan& plan, const Device& device,
                                      const ProtectionDomain& domain, ControlConnection& control,
                                      const SessionHooks& hooks);

}  // namespace verbena::bench
