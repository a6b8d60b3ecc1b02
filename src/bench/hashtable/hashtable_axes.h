// What can be varied about the hashtable.
#pragma once

#include <span>

#include "src/bench/experiment/axis.h"

namespace verbena::bench {

std::span<const Axis> hashtable_axes();

}  // namespace verbena::bench
