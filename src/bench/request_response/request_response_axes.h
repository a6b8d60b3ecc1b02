// What can be varied about requests and responses.
#pragma once

#include <span>

#include "src/bench/experiment/axis.h"

namespace verbena::bench {

std::span<const Axis> request_response_axes();

}  // namespace verbena::bench
