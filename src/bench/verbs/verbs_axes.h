// What can be varied about raw verbs.
#pragma once

#include <span>

#include "src/bench/experiment/axis.h"

namespace verbena::bench {

std::span<const Axis> verbs_axes();

}  // namespace verbena::bench
