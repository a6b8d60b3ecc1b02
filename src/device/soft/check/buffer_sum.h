// Whether a send buffer is as it was: a sum of its bytes, or of a sample of them where there are
// many, so that the cost of a check is bounded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace verbena::soft::check {

// All bytes are summed up to here; of longer buffers the first and last 4 KiB, and 1 KiB at each of
// eight places in between.
inline constexpr size_t kWholeSumBytes = 16 * 1024;

// Nothing if the memory cannot be read (any more); never a fault.
std::optional<uint64_t> sum_buffer(uint64_t address, size_t size_bytes);

}  // namespace verbena::soft::check
