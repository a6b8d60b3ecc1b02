// Whether memory of this process may be discarded past the C library.
#pragma once

#include <optional>

namespace verbena::soft {

// Whether some loaded object has the runtime of Go, by the note that its linker writes, or without
// that (-buildid=) by the sections of its file. That runtime makes the system call madvise itself,
// so no function in front of the C library sees it, and Go 1.26 takes zeroes for granted after
// MADV_DONTNEED. Once true, always true. Thread-safe. Cost: below 1 us unless objects were loaded
// since the latest call; then their files are opened.
bool has_go_runtime();

// Whether this is an ELF file with a section that only Go's linker makes; false also where it is
// no such file, or none that can be opened. Nothing without a file descriptor left.
std::optional<bool> has_go_section(const char* path);

}  // namespace verbena::soft
