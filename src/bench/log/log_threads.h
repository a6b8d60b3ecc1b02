// The threads of a node in a point about the log.
#pragma once

#include <cstdint>

#include "src/bench/run/node_job.h"

namespace verbena::bench {

// A writer or a reader: opens the log, then serves phases until the team leaves. The first one has
// made one log of the replicas before. `number` is the thread's in job.wiring().
void run_log_front_end(NodeJob& job, uint32_t number, ThreadReport& report);
// A back-end: has a replica of the log.
void run_log_store(NodeJob& job, uint32_t number, ThreadReport& report);

}  // namespace verbena::bench
