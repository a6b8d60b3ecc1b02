// The threads of a node in a point about the join. A run is one join, in which all executors take
// part.
#pragma once

#include <cstdint>

#include "src/bench/run/node_job.h"

namespace verbena::bench {

// `number` is the thread's in job.wiring(): of an executor, and of the thread that takes in those
// that send to the executor with the same number.
void run_join_executor(NodeJob& job, uint32_t number, ThreadReport& report);
void run_join_acceptor(NodeJob& job, uint32_t number, ThreadReport& report);

}  // namespace verbena::bench
