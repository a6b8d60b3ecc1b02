// Registered memory of libfabric: what peers may reach by a key. An entry of the domain's table,
// and nothing of a device; where memory only sends and receives, not even that.
#pragma once

#include <rdma/fi_domain.h>

#include "src/ofi/counter.h"
#include "src/ofi/domain.h"
#include "verbena/message.h"

namespace verbena::ofi {

// Under the domain's lock.
struct RegisteredMemory : fid_mr {
  using Handle = fid_mr;
  RegisteredMemory(Domain& of, bool is_exposed, uint64_t its_key, void* context);

  // Lets its counters count what peers have done since the last time.
  void count_remote();

  Domain& domain;
  const bool exposed;
  Counter* reads = nullptr;
  Counter* writes = nullptr;
  const MemoryCounts* counts = nullptr;  // of one that has counters
  MemoryCounts counted;
};

extern fi_ops_mr registration_calls;

// The same of all that have counters. Under the lock.
void count_remote(Domain& domain);

}  // namespace verbena::ofi
