// What a shuffle costs beside memcpy(): the same records, from the same memory, to as many places
// of the same size, which the same hash of their keys chooses.
#pragma once

#include <cstdint>

#include "src/bench/baselines/process_pair.h"
#include "verbena/status.h"

namespace verbena::bench::baselines {

inline constexpr uint32_t kRecordBytes = 256;
inline constexpr uint32_t kRecordPlaces = 4;
inline constexpr uint64_t kRecordPlaceBytes = uint64_t{256} << 10;
inline constexpr uint32_t kRecordsOfWrite = 128;
// More than fits the caches that a core has alone, read from its beginning to its end.
inline constexpr uint64_t kRecordSourceBytes = uint64_t{16} << 20;

// Bytes per second: the median of `slices` times kRecordSourceBytes.
//
// Through a shuffle with the automatic method, from one executor to kRecordPlaces, which side 1
// polls in turn: it reads the key of each record, and releases it.
Result<double> shuffle_bandwidth(const CpuPair& cpus, uint64_t slices);
// By one memcpy() for each record, to places in a shared mapping; side 1 does nothing.
Result<double> record_copy_bandwidth(const CpuPair& cpus, uint64_t slices);

}  // namespace verbena::bench::baselines
