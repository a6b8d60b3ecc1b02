// Counters: how many operations of the bound endpoints have completed.
#pragma once

#include <rdma/fi_eq.h>

#include <cstdint>
#include <vector>

#include "src/ofi/domain.h"
#include "src/ofi/wait_point.h"

namespace verbena::ofi {

struct Endpoint;

// Under the domain's lock.
struct Counter : fid_cntr {
  using Handle = fid_cntr;
  Counter(Domain& of, void* context);

  Domain& domain;
  uint64_t completed = 0;
  uint64_t failed = 0;
  std::vector<Endpoint*> endpoints;  // once each
  uint32_t memories = 0;             // that it is bound to, which all endpoints reach
  uint64_t shown = 0;                // both, when the program read one of them
  bool waits_at_descriptor = false;  // FI_WAIT_FD
  WaitPoint waiters;

  // Those whose progress lets it count.
  const WaitPoint::Sources sources = [this]() -> const std::vector<Endpoint*>& {
    return memories > 0 ? domain.enabled : endpoints;
  };
  void add(uint64_t operations) {
    completed += operations;
    waiters.notify();
  }
};

int open_counter(fid_domain* domain, fi_cntr_attr* attributes, fid_cntr** counter, void* context);

}  // namespace verbena::ofi
