// Programs that a preloaded library does not reach. The dynamic linker loads it, so a program that
// has none, or one of another C library, or more rights than its caller, runs as if it were not
// there.
#pragma once

#include <string>

namespace verbena::cli {

// Why LD_PRELOAD has no effect on `program`, which is searched for in PATH as execvp() does: a line
// without an end, with the remedy. Empty where it has one, and where this cannot tell. Of a script
// the interpreter is looked at. What the program starts in turn is not: a static launcher passes
// the variable on.
std::string why_not_preloaded(const std::string& program);

}  // namespace verbena::cli
