// The latencies that are compared: all as half of a round trip's median, each round trip timed by
// itself.
#pragma once

#include <cstdint>

#include "src/bench/baselines/process_pair.h"
#include "verbena/status.h"

namespace verbena::bench::baselines {

// One cache line handed back and forth by plain loads and stores: what no messaging can beat.
Result<double> cache_line_one_way_ns(const CpuPair& cpus, uint64_t round_trips);

// 8 bytes by inline WRITE on plain verbs; the receiver polls the last byte.
Result<double> write_one_way_ns(const CpuPair& cpus, uint64_t round_trips);

// 8 bytes by inline SEND on plain verbs; the receiver polls its completion queue, on which it has
// so many connected queue pairs: the last one is used.
Result<double> send_one_way_ns(const CpuPair& cpus, uint64_t round_trips, uint32_t queue_pairs = 1);

// A 64 B request and a 64 B response by WRITE/WRITE through the request/response layer: the whole
// round trip.
Result<double> write_write_round_trip_ns(const CpuPair& cpus, uint64_t round_trips);

}  // namespace verbena::bench::baselines
