// Whether memory that the program may have unmapped or protected can be used, by touching it: an
// RNIC has pinned what is registered, soft0 uses some of it at the program's own addresses
// (RegionEntry::alias). A probe that faults returns false; it is no signal for the program.
//
// Each probe is one instruction, which a table names together with the place to go on at; the
// handler of SIGSEGV and SIGBUS looks the faulting instruction up there. The fault ends the process
// as before where the thread blocks these signals, where the program has replaced the handler and
// does not call it, and where another thread takes the memory away between probe and copy.
#pragma once

#include <cstddef>

namespace verbena::soft {

// Makes probes of this process safe. Other faults go to who handled them before. May be repeated;
// thread-safe.
void handle_probe_faults();

// Whether all of [begin, begin + size_bytes), of at least one byte, can be read; or written to if
// `writes`. Then a byte that another thread writes meanwhile may keep its value from before: only
// what is about to be overwritten is probed so. On processors other than x86-64 and 64-bit Arm
// nothing is probed. Cost: one instruction a page beside the call.
bool is_there(std::byte* begin, size_t size_bytes, bool writes);

// As is_there() for writing, of memory that others may be writing to meanwhile: nothing in it
// changes. Cost: a locked instruction a page.
bool bring_in_for_writing(std::byte* begin, size_t size_bytes);

}  // namespace verbena::soft
