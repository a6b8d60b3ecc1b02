// How much a rank that is replayed has pending at once.
#pragma once

#include <cstdint>

#include "src/trace/recording.h"

namespace verbena::bench {

// More a messenger is not asked for.
inline constexpr uint64_t kMostReplayPending = uint64_t{1} << 18;

// The most messages that this rank has started and not waited for, and those of one blocking call;
// of collective operations a bound, two for each member. What is never waited for does not count.
uint64_t replay_pending(const trace::RecordedJob& job, uint32_t rank);

}  // namespace verbena::bench
