// What can be varied about operations on remote memory.
#pragma once

#include <span>

#include "src/bench/experiment/axis.h"

namespace verbena::bench {

std::span<const Axis> remote_axes();

}  // namespace verbena::bench
