// A recording for people.
#pragma once

#include <string>

#include "src/trace/recording.h"

namespace verbena::trace {

// In one line: ranks, calls, bytes, time.
std::string headline(const RecordedJob& job);
// What is in a recording and in no replay of it, a line for each; empty where that is nothing.
std::string omissions_text(const RecordedJob& job);
// All of it: by call, by size, by peer.
std::string summary_text(const RecordedJob& job);

}  // namespace verbena::trace
