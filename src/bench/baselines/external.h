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

// The same program over the software RNIC, by UCX's transport for reliable connections: `verbena
// run -- ucx_perftest -x rc_verbs`. `tool` is the path of verbena, here and below.
Result<double> ucx_verbs_one_way_ns(const CpuPair& cpus, const std::string& tool,
                                    const std::string& test, uint32_t bytes, uint64_t round_trips);

// `verbena run -- PROGRAM -s 8 -c CONNECTION` of one of perftest's latency tests: its typical
// (median) one-way time.
Result<double> perftest_one_way_ns(const CpuPair& cpus, const std::string& tool,
                                   const std::string& program, const std::string& connection,
                                   uint64_t round_trips);

// `verbena run -- ib_write_bw`: perftest's average, in bytes per second.
Result<double> perftest_write_bandwidth(const CpuPair& cpus, const std::string& tool,
                                        uint64_t message_bytes, uint64_t messages);

// The parts that read the programs' output, for tests.
Result<double> parse_ucx_median_us(const std::string& output);
Result<double> parse_perftest_typical(const std::string& output);
Result<double> parse_perftest_bandwidth(const std::string& output);

}  // namespace verbena::bench::baselines
