// A trace of what happened in a simulation, in the format of Chrome's trace viewer and Perfetto.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>

#include "src/device/sim/recorder.h"
#include "verbena/rpc.h"

namespace verbena::bench {

// A viewer has its limits, too.
inline constexpr size_t kMostTracedMessages = 64;
inline constexpr size_t kMostTracedSteps = 50'000;

// All steps while the message `chosen` was under way, and the messages that were taken next to it
// up to kMostTracedMessages. Nodes are processes; threads, and what messages pass through, are
// tracks, several of a kind where steps overlap; flows join the steps of a message.
nlohmann::json simulation_trace(const sim::Recorder& recorder, MarkLayout layout,
                                const sim::Recorder::Taken& chosen);

}  // namespace verbena::bench
