// The connection manager's device file, /dev/infiniband/rdma_cm, as programs find it.
#pragma once

namespace verbena::soft::interpose {

// Whether a path names the file. Cost for others: a look at a few characters.
bool names_connection_channel(const char* path);
// Opens it: a descriptor, or -1 with errno.
int open_connection_channel(int flags);

}  // namespace verbena::soft::interpose
