// A responding thread of a node, from listening to the end of the point.
#pragma once

#include <cstdint>

#include "src/bench/run/node_job.h"

namespace verbena::bench {

// The body of the thread: takes the steps of the job's team until kLeave. `number` is that of the
// thread over all nodes.
void run_responding_thread(NodeJob& job, uint32_t number, ThreadReport& report);

}  // namespace verbena::bench
