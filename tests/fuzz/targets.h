// What text_targets.cc and frame_targets.cc have for the list in fuzz_target.cc.
#pragma once

#include "tests/fuzz/fuzz_target.h"

namespace verbena::fuzz {

std::vector<FuzzTarget> text_targets();
std::vector<FuzzTarget> frame_targets();

}  // namespace verbena::fuzz
