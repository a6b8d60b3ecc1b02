// A process has one software RNIC: two would share the same pages in two memory files.
#pragma once

#include "verbena/status.h"

namespace verbena::soft {

// Fails with kUnavailable if the process has loaded this code a second time, beside the object
// (library or program) that this copy lies in: somebody loaded libverbena.so by a path instead of
// by its name, or by another name, or into a namespace of the loader's (dlmopen).
Status check_only_copy();

}  // namespace verbena::soft
