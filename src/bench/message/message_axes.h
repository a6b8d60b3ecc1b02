// What can be varied about tagged messages.
#pragma once

#include <span>

#include "src/bench/experiment/axis.h"

namespace verbena::bench {

std::span<const Axis> message_axes();

}  // namespace verbena::bench
