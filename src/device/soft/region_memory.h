// What the mappings of this process say about memory that an application registers.
#pragma once

#include <cstdint>

#include "src/device/soft/pages/page_share.h"
#include "verbena/status.h"

namespace verbena::soft {

// A System V segment that holds all of some memory.
struct Segment {
  int id = 0;
  uint64_t offset_bytes = 0;
  bool found = false;
};

// Whether [address, address + length) can be registered as an RNIC would pin it: all of it is
// mapped, readable, backed by a file that reaches so far or by none, and writable if `writes`. Else
// kInvalidArgument, with one line. Cost: a system call or two per mapping.
Result<Segment> check_mapped_memory(const PageShare& pages, uint64_t address, uint64_t length_bytes,
                                    bool writes);

}  // namespace verbena::soft
