// What connected queue pairs need of memory.
#pragma once

#include <cstdint>
#include <string>

#include "src/bench/baselines/process_pair.h"
#include "verbena/status.h"

namespace verbena::bench::baselines {

// Bytes per connected queue pair of a process that has `count` of them, with the default depths,
// after messages have gone through every place of their queues: what the process's memory (Pss)
// grew by. Pages that both processes map count half for each, and both have the same.
Result<double> queue_pair_memory_bytes(const CpuPair& cpus, uint32_t count);

// The part that reads /proc/self/smaps_rollup, for tests.
Result<double> parse_proportional_bytes(const std::string& rollup);

}  // namespace verbena::bench::baselines
