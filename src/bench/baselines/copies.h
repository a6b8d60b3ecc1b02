// Bandwidths and registration times that are compared.
#pragma once

#include <cstdint>

#include "src/bench/baselines/process_pair.h"
#include "verbena/status.h"

namespace verbena::bench::baselines {

// Bytes per second of messages, one after the other, from one buffer of side 0 to one of side 1,
// which sleeps meanwhile. A message has at most kSharedBytes.
// By signaled WRITEs.
Result<double> write_bandwidth(const CpuPair& cpus, uint64_t message_bytes, uint64_t messages);
// By memcpy() between two shared mappings.
Result<double> memcpy_bandwidth(const CpuPair& cpus, uint64_t message_bytes, uint64_t messages);
// Inline WRITEs of 8 bytes per second, posted one by one by the one thread of side 0.
Result<double> write_rate(const CpuPair& cpus, uint64_t writes);

// Registering 4 KiB that a registration has covered before, in microseconds.
Result<double> registration_again_us(const CpuPair& cpus, uint64_t registrations);
// Registering 1 GiB for the first time, every page of which has been written, in seconds.
Result<double> registration_of_gigabyte_s(const CpuPair& cpus);

}  // namespace verbena::bench::baselines
