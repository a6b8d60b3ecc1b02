// The software RNIC of this process, in libverbena.so.
//
// It is loaded when it is first needed, so programs that use RNICs alone, or simulate, run without
// the library.
#pragma once

#include <infiniband/verbs.h>

#include "src/device/soft/soft_rnic.h"
#include "verbena/status.h"

namespace verbena {

// Loads libverbena.so, once; an error is not remembered. Fails with kUnavailable where the
// dynamic linker finds none, and with kUnsupported where it finds one of another version.
//
// Programs that link the objects of src/device/soft have the software RNIC without that, and this
// function is another one (soft/linked_rnic.cc).
Result<const soft::SoftRnic*> load_soft_rnic();

// Closes a context of soft0: ibv_close_device for one.
int close_soft_rnic(ibv_context* context);

}  // namespace verbena
