// Checks that workloads share.
#pragma once

#include <cstdint>
#include <string_view>

#include "verbena/device.h"
#include "verbena/status.h"

namespace verbena::bench {

// Whether a queue pair takes so many requests at once. `remedy` names what to lower.
Status check_queue_depth(uint64_t pending, const DeviceInfo& device, std::string_view remedy);

}  // namespace verbena::bench
