// Time as the library reads it: the machine's, and in a simulation virtual time. A program that
// takes it from here can run in both.
#pragma once

#include <cstdint>

namespace verbena {

// Monotonic time since a point of its own. About 20 ns; no system call.
uint64_t now_ns();

// Gives the CPU away for at least so long.
void sleep_ns(uint64_t duration_ns);

}  // namespace verbena
