// The fabric object: what a program opens first, and makes domains and event queues of.
#pragma once

#include <rdma/fabric.h>

namespace verbena::ofi {

int open_fabric(fi_fabric_attr* attributes, fid_fabric** fabric, void* context);

}  // namespace verbena::ofi
