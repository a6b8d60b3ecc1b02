// Where the time of a message goes, for people: a line per step, and a sum for each unit.
#pragma once

#include <functional>
#include <string>

#include "src/bench/explain/message_path.h"

namespace verbena::bench {

// "thread 0", "sending side": where a step happens.
std::string place_text(const sim::Step& step, const std::vector<sim::Recorder::Thread>& threads);

// The waterfall; waits are in light bars and in brackets.
std::string waterfall_text(const MessagePath& path,
                           const std::vector<sim::Recorder::Thread>& threads);
// By unit, what served the message and what kept it waiting.
std::string summary_text(const MessagePath& path);
// Whether the steps add up to what was measured.
std::string sum_text(const MessagePath& path);

}  // namespace verbena::bench
