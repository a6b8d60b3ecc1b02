// What can be varied about the join.
#pragma once

#include <span>

#include "src/bench/experiment/axis.h"

namespace verbena::bench {

std::span<const Axis> join_axes();

}  // namespace verbena::bench
