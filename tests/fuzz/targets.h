// What the files of targets have for the list in fuzz_target.cc.
#pragma once

#include "tests/fuzz/fuzz_target.h"

namespace verbena::fuzz {

std::vector<FuzzTarget> text_targets();
std::vector<FuzzTarget> frame_targets();
std::vector<FuzzTarget> application_targets();
std::vector<FuzzTarget> recording_targets();
std::vector<FuzzTarget> connection_targets();

}  // namespace verbena::fuzz
