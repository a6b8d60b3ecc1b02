// CRC-32C (Castagnoli), by the processor's instruction where it has one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace verbena::log_app {

// Of `bytes`, going on from `crc`, that of what is before them; 0 for nothing.
uint32_t crc32c(uint32_t crc, const void* bytes, size_t size_bytes);
// The same without the instruction.
uint32_t crc32c_by_table(uint32_t crc, const void* bytes, size_t size_bytes);

}  // namespace verbena::log_app
