// The connection manager as calls on descriptors, for soft_rnic.h.
#pragma once

#include <sys/types.h>

#include <cstddef>

namespace verbena::soft::cm {

int open_channel(int flags);
ssize_t write_command(int fd, const void* command, size_t size_bytes);
bool is_channel(int fd);
void channel_closed();

}  // namespace verbena::soft::cm
