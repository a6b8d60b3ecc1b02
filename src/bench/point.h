// What is measured: one protocol with one set of sizes, and how long.
#pragma once

#include <cstdint>

#include "verbena/rpc.h"

namespace verbena::bench {

struct Point {
  Protocol protocol = Protocol::kWriteWrite;
  MarkLayout layout = MarkLayout::kLastBit;  // means something only where uses_mark_layout()
  uint32_t request_bytes = 64;
  uint32_t response_bytes = 64;
  uint32_t pending = 1;
};

// How long one run of a point lasts: until either limit is reached.
struct RunLength {
  uint64_t requests = UINT64_MAX;
  uint64_t duration_ns = 300'000'000;
};

// "last-bit" and so on; "none" where the protocol has no mark.
inline const char* layout_text(const Point& point) {
  return uses_mark_layout(point.protocol) ? mark_layout_name(point.layout) : "none";
}

}  // namespace verbena::bench
