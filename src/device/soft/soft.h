// The software RNIC's front: the device `soft0` as verbs objects. What lies outside of this folder
// reaches it by soft_rnic.h alone.
//
// Every function follows the convention of the ibv_ function of the same name. Objects are ordinary
// ibv_ structures (extended privately behind their public part); ibv_context::ops carries the data
// path.
#pragma once

#include <infiniband/verbs.h>

#include "src/device/soft/presentation.h"
#include "src/device/verbs_control.h"

namespace verbena::soft {

// Opens a device: joins this user's registry of software RNICs. Null with errno on failure, and
// last_error() says why. The context's async_fd is a real descriptor. Each open yields an own
// context; all of a process share one RNIC.
ibv_context* open_device(ibv_device*);
int close_device(ibv_context*);

const VerbsControl& control();

}  // namespace verbena::soft
