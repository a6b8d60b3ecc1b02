// Reads the files of a recording (rank_encoder.h), whoever wrote them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "src/trace/recording.h"
#include "verbena/status.h"

namespace verbena::trace {

// What the ranks before it had: the limits are those of all ranks together.
struct RecordedBefore {
  uint64_t events = 0;
  uint64_t numbers = 0;
};

// One rank's; `name` is what errors call it. kProtocolViolation: damaged, unfinished or of another
// version; kLimitExceeded: more than the limits of recording.h.
Result<RankRecording> decode_rank(std::span<const std::byte> bytes, const std::string& name,
                                  const RecordedBefore& before = {});

// All ranks' in this folder, linked (link_job()). kNotFound: there are none, or not all.
Result<RecordedJob> read_recording(const std::string& folder);

// "rank-00007.trace".
std::string rank_file_name(uint32_t rank);

}  // namespace verbena::trace
