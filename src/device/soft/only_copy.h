// A process has one software RNIC: two would share the same pages in two memory files.
#pragma once

#include "verbena/status.h"

namespace verbena::soft {

// Fails with kUnavailable if the process has loaded a libverbena.so beside the object (library or
// program) that this code lies in: somebody loaded it by a path instead of by its name, or into a
// namespace of the loader's (dlmopen).
Status check_only_copy();

}  // namespace verbena::soft
