// Checks that workloads share.
#pragma once

#include <cstdint>
#include <string_view>

#include "verbena/apps/shuffle.h"
#include "verbena/device.h"
#include "verbena/status.h"

namespace verbena::bench {

// Whether a queue pair takes so many requests at once. `remedy` names what to lower.
Status check_queue_depth(uint64_t pending, const DeviceInfo& device, std::string_view remedy);

// `who` needs them: "the shuffle".
Status check_atomics(const DeviceInfo& device, std::string_view who);

// The shuffle, and what uses it.
inline constexpr uint32_t kMostExecutors = 4096;
// Whether the device has what a shuffle of such a method needs, for batches of so many `things`:
// "records".
Status check_shuffle(const DeviceInfo& device, ShuffleMethod method, uint32_t batch,
                     std::string_view things);

}  // namespace verbena::bench
