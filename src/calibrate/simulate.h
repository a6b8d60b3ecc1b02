// What a point takes with parameters that are not a profile of the user's yet.
#pragma once

#include <cstdint>
#include <vector>

#include "src/calibrate/observation.h"
#include "src/device/sim/rnic_profile.h"
#include "verbena/status.h"

namespace verbena::calibrate {

// In nanoseconds, the median of `runs` with different random numbers, of about so many `messages`
// each; a run in which nothing completes is repeated for longer.
Result<double> simulate(const std::vector<sim::ParameterText>& parameters,
                        const bench::Point& point, Quantity quantity, uint64_t messages,
                        uint32_t runs);

}  // namespace verbena::calibrate
