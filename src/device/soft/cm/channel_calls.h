// The connection manager as calls on descriptors, for soft_rnic.h.
#pragma once

#include <sys/types.h>

#include <cstddef>

#include "src/device/soft/soft_rnic.h"

namespace verbena::soft::cm {

int open_channel(int flags);
ssize_t write_command(int fd, const void* command, size_t size_bytes);
bool is_channel(int fd);
void channel_closed();
// All of them.
const ConnectionChannels& channel_calls();

}  // namespace verbena::soft::cm
