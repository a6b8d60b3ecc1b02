// What the two ends of a connection tell each other: which one has the region, and where it lies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/base/wire.h"
#include "verbena/status.h"

namespace verbena::remote {

enum class Role : uint8_t { kBackEnd = 1, kFrontEnd = 2 };

struct RegionDescription {
  Role role = Role::kFrontEnd;
  // Of a back-end.
  uint64_t address = 0;
  uint64_t size_bytes = 0;
  uint32_t rkey = 0;
  bool writable = false;
  bool atomics = false;  // its device has them
};

std::vector<std::byte> encode(const RegionDescription& description);

// Reads what a peer told, which must have the other role than `mine`.
//   kInvalidArgument    both sides have the same role
//   kProtocolViolation  it makes no sense
Status decode(WireReader& reader, Role mine, RegionDescription* description);

}  // namespace verbena::remote
