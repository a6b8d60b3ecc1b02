// The threads of a node in a point about tagged messages.
#pragma once

#include <cstdint>

#include "src/bench/run/node_job.h"

namespace verbena::bench {

// Rank 0; `number` is the thread's in job.wiring(), 0.
void run_measuring_rank(NodeJob& job, uint32_t number, ThreadReport& report);
// Rank `number` + 1.
void run_other_rank(NodeJob& job, uint32_t number, ThreadReport& report);

}  // namespace verbena::bench
