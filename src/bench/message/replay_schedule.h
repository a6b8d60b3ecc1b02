// A collective operation as messages of one rank, so that several can be under way at once: the
// algorithms of message_collectives.h, and for what these have not the plainest ones of MPICH.
//
//   barrier, broadcast, scatter, allreduce  as there, for any root
//   reduce, gather     the binomial tree upwards
//   scan               exchanges with ranks at twice the distance each time
//   allgather          a ring
//   alltoall           all receives and all sends at once
//   reduce_scatter     a reduce, and from its root to each
//   with a list        gather and scatter go from each to the root, or from it to each, directly
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/trace/recording.h"

namespace verbena::bench {

struct ReplayStep {
  enum class Kind : uint8_t {
    kSend,
    kReceive,
    kWait,  // until all before it is done
    kCopy,  // or sums up: so many bytes, by the CPU
  };
  Kind kind = Kind::kWait;
  uint32_t peer = 0;  // a rank of the job
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// Of member number `self`. `list`: the event's.
std::vector<ReplayStep> collective_schedule(const trace::Event& event,
                                            std::span<const uint64_t> list,
                                            std::span<const uint32_t> members, uint32_t self);

// The memory that its offsets are in.
uint64_t collective_scratch_bytes(const trace::Event& event, std::span<const uint64_t> list,
                                  uint64_t members);

}  // namespace verbena::bench
