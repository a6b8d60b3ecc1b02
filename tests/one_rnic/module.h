// What the two modules of one_rnic_test.cc export.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>

extern "C" {

// The module's context of soft0, opened at the first call.
ibv_context* module_context();
// Registers memory, until the process ends, and returns the key.
uint32_t module_register(void* address, size_t length_bytes);

}  // extern "C"
