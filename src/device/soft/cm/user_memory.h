// Copies to and from addresses that a program wrote into a command.
#pragma once

#include <cstddef>
#include <cstdint>

namespace verbena::soft::cm {

// 0, or EFAULT where the program has no such memory: as of the kernel, which follows no pointer
// that leads nowhere.
int copy_to_program(uint64_t address, const void* from, size_t size_bytes);
int copy_from_program(uint64_t address, void* to, size_t size_bytes);

}  // namespace verbena::soft::cm
