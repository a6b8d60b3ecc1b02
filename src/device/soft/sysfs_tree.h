// What the kernel would show of the device in /sys, as files in a private directory: programs read
// names, states and places of devices there rather than ask verbs. The contents come from the same
// functions as the answers to verbs.
//
// The directory has the paths of /sys below it, and a name made of its contents. So it is complete
// or not there, serves all processes of the user, and is never changed but for the counters of data
// (observe/watch.h); like the registry's, it goes with the machine's memory.
#pragma once

#include <infiniband/verbs.h>

#include <string>
#include <vector>

#include "src/device/soft/presentation.h"
#include "verbena/status.h"

namespace verbena::soft {

// A file with `text`, or where `link` is not empty, a symbolic link, or a directory.
struct SysfsEntry {
  std::string path;  // "sys/class/..."
  std::string text;
  std::string link;
  bool is_directory = false;
};

// What is there to be shown.
struct SysfsDevice {
  const ibv_device* device;
  ibv_device_attr attributes;
  ibv_port_attr port;               // the only one
  std::vector<ibv_gid_entry> gids;  // the whole table; empty entries have a GID of zeros
  uint16_t partition_key;
  std::string cpus;  // near the device, "0-3"
};

// Of a device of this machine. `cpus` are those near it.
SysfsDevice describe_for_sysfs(uint32_t index, LinkLayer, const std::string& cpus);
std::vector<SysfsEntry> sysfs_entries(const SysfsDevice& device);
// Links to the class entries of the machine's own devices, which a listing must show too. `real`:
// the machine's /sys.
std::vector<SysfsEntry> sysfs_links_of_real_devices(const std::string& real);

// Makes the directory below `place` unless it is there; its path.
Result<std::string> make_sysfs_tree(const std::string& place,
                                    const std::vector<SysfsEntry>& entries);

// Of all listed devices, in the directory of the registry; null if it cannot be made, and a line in
// the log says why. Takes some milliseconds where no process has made it before.
const char* sysfs_root();

}  // namespace verbena::soft
