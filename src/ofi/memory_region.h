// Registered memory of libfabric: what peers may reach by a key. An entry of the domain's table,
// and nothing of a device; where memory only sends and receives, not even that.
#pragma once

#include <rdma/fi_domain.h>

#include "src/ofi/domain.h"

namespace verbena::ofi {

// Under the domain's lock.
struct RegisteredMemory : fid_mr {
  using Handle = fid_mr;
  RegisteredMemory(Domain& of, bool is_exposed, uint64_t its_key, void* context);

  Domain& domain;
  const bool exposed;
};

extern fi_ops_mr registration_calls;

}  // namespace verbena::ofi
