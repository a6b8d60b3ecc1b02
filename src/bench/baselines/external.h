// The contenders that are programs of others: UCX's and perftest's latency tests.
#pragma once

#include <cstdint>
#include <string>

#include "src/bench/baselines/process_pair.h"
#include "verbena/status.h"

namespace verbena::bench::baselines {

// ucx_perftest over shared memory (posix): the median one-way time of "put_lat" (a remote
// store, polled) or "am_lat" (an active message).
Result<double> ucx_one_way_ns(const CpuPair& cpus, const std::string& test, uint32_t bytes,
                              uint64_t round_trips);

// `verbena run -- ib_write_lat -s 8`: perftest's typical (median) one-way time. `tool` is the path
// of verbena.
Result<double> perftest_write_one_way_ns(const CpuPair& cpus, const std::string& tool,
                                         uint64_t round_trips);

// The parts that read the programs' output, for tests.
Result<double> parse_ucx_median_us(const std::string& output);
Result<double> parse_perftest_typical(const std::string& output);

}  // namespace verbena::bench::baselines
