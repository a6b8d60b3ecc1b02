// The threads of a node in a point about remote memory.
#pragma once

#include <cstdint>

#include "src/bench/run/node_job.h"

namespace verbena::bench {

// Connects to the memory, or to the server, that all such threads share, then serves phases until
// the team leaves. `number` is the thread's in job.wiring().
void run_remote_requesting_thread(NodeJob& job, uint32_t number, ThreadReport& report);
// Has the memory, and answers calls where a server keeps the word.
void run_remote_responding_thread(NodeJob& job, uint32_t number, ThreadReport& report);

}  // namespace verbena::bench
