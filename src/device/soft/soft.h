// The software RNIC's front: the device `soft0` as verbs objects, for src/device and for the
// libibverbs interposer.
//
// Every function follows the convention of the ibv_ function of the same name. Objects are ordinary
// ibv_ structures (extended privately behind their public part); ibv_context::ops carries the data
// path.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>

#include "src/device/verbs_control.h"

namespace verbena::soft {

inline constexpr const char* kDeviceName = "soft0";

// The one software device of this process; never freed, made on first use. It has zeroed space
// behind its public part, because some libraries look there.
ibv_device* device();

// Opens the device: joins this user's registry of software RNICs. Null with errno on failure, and
// last_error() says why. The context's async_fd is a real descriptor. Each open yields an own
// context; all of a process share one RNIC.
ibv_context* open_device(ibv_device*);
int close_device(ibv_context*);

// Whether an object came from open_device / device(); safe for foreign objects.
bool owns(const ibv_context*);
bool owns(const ibv_device*);

const VerbsControl& control();

// The program gives the pages of [address, address + length) back to the kernel or puts others
// there: munmap, mmap with MAP_FIXED, MADV_DONTNEED. What peers shared of them becomes zero pages,
// and a later registration starts anew. Called before the kernel is, on any thread and from malloc,
// so it neither allocates nor waits long. Does nothing, at the cost of a load, where nothing is
// shared.
void pages_released(void* address, size_t length_bytes);

}  // namespace verbena::soft
