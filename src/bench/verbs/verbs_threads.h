// The threads of a node in a point about raw verbs.
#pragma once

#include <cstdint>

#include "src/bench/run/node_job.h"

namespace verbena::bench {

// Connects to the thread that its operations reach, then serves phases until the team leaves.
// `number` is the thread's in job.wiring().
void run_verbs_requesting_thread(NodeJob& job, uint32_t number, ThreadReport& report);
// Has the memory that operations reach, and posts receives where they are SENDs.
void run_verbs_responding_thread(NodeJob& job, uint32_t number, ThreadReport& report);

}  // namespace verbena::bench
