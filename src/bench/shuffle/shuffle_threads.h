// The threads of a node in a point about the shuffle.
#pragma once

#include <cstdint>

#include "src/bench/run/node_job.h"

namespace verbena::bench {

// `number` is the thread's in job.wiring().
void run_shuffle_sender(NodeJob& job, uint32_t number, ThreadReport& report);
void run_shuffle_receiver(NodeJob& job, uint32_t number, ThreadReport& report);

}  // namespace verbena::bench
