// What can be varied about the log.
#pragma once

#include <span>

#include "src/bench/experiment/axis.h"

namespace verbena::bench {

std::span<const Axis> log_axes();

}  // namespace verbena::bench
