// What can be varied about the shuffle.
#pragma once

#include <span>

#include "src/bench/experiment/axis.h"

namespace verbena::bench {

std::span<const Axis> shuffle_axes();

}  // namespace verbena::bench
