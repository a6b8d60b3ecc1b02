// The counters of all processes of the user: for `verbena top`, and as files below sysfs_root().
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "src/device/soft/observe/watched.h"

namespace verbena::soft {

// The entry of SoftRnic.
const Watch& watch();

// What programs find in ports/1: "counters/port_xmit_data" and its kind, and their values.
std::vector<std::pair<std::string, uint64_t>> sysfs_counters(const Counts& device);

}  // namespace verbena::soft
