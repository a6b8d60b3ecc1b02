// The threads of a node in a point about the hashtable.
#pragma once

#include <cstdint>

#include "src/bench/run/node_job.h"

namespace verbena::bench {

// A front-end: opens the tables, then serves phases until the team leaves. `number` is the thread's
// in job.wiring().
void run_hashtable_front_end(NodeJob& job, uint32_t number, ThreadReport& report);
// A back-end: has a table with the keys that are there at the beginning.
void run_hashtable_back_end(NodeJob& job, uint32_t number, ThreadReport& report);

}  // namespace verbena::bench
