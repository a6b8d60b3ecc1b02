// Ctrl-C: measuring stops at the next message, and what was finished is kept.
#pragma once

#include <atomic>

namespace verbena::bench {

// From here on SIGINT and SIGTERM only set a flag; a second one ends the process as usual.
void catch_interrupts();
// For a process that another one controls: Ctrl-C in the terminal reaches both, and the other one
// decides.
void ignore_interrupts();

// The flag; the exit code of a process that obeys it is 128 + the signal (130 for Ctrl-C).
bool interrupted();
// So long a wait may last before the flag is read again.
inline constexpr int kInterruptLookMs = 50;
int interrupt_exit_code();

}  // namespace verbena::bench
