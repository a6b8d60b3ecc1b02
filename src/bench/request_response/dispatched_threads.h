// The threads of a requesting node whose queue pairs belong to a dispatcher ("patterns" 4.1, design
// 2): the dispatcher, and the workers that send requests through it.
#pragma once

#include <cstdint>

#include "src/bench/run/node_job.h"

namespace verbena::bench {

// Connects and carries the workers' requests until the team leaves. `number` counts the dispatchers
// of the job.
void run_dispatcher_thread(NodeJob& job, uint32_t number, ThreadReport& report);

// What run_requesting_thread() is without one; `number` counts the requesting threads of the job.
void run_worker_thread(NodeJob& job, uint32_t number, ThreadReport& report);

}  // namespace verbena::bench
