// What the calls for remote memory, and those for atomics, have in common.
#pragma once

#include <rdma/fi_atomic.h>
#include <rdma/fi_endpoint.h>

#include <cstdint>
#include <span>

#include "src/ofi/endpoint.h"
#include "src/ofi/info.h"
#include "verbena/message.h"

namespace verbena::ofi {

struct OneSided {
  std::span<const iovec> pieces;
  std::span<const RemoteRange> remote;
  fi_addr_t peer;
  void* context = nullptr;
  uint64_t data = 0;
  uint64_t flags = 0;  // of libfabric
  bool reads = false;
  bool has_data = false;
  bool own_flags = false;  // not those of the endpoint
  bool silent = false;     // fi_inject_write: no entry, whatever the flags say
};

struct Atomic {
  std::span<const fi_ioc> operands;
  std::span<const fi_ioc> compared = {};
  std::span<const fi_ioc> results = {};
  std::span<const fi_rma_ioc> remote;
  fi_datatype type;
  fi_op operation;
  fi_addr_t peer;
  void* context = nullptr;
  uint64_t flags = 0;
  bool own_flags = false;
  bool silent = false;
};

// How an atomic is called.
enum class AtomicCall { kBase, kFetch, kCompare };

// 0, or -FI_EOPNOTSUPP: there is no such operation, or not by this call.
int check_atomic(fi_datatype type, fi_op operation, AtomicCall call);

// Errors of libfabric, or 0.
ssize_t transfer(fid_ep* handle, const OneSided& posted);
ssize_t change(fid_ep* handle, const Atomic& posted, AtomicCall call);

}  // namespace verbena::ofi
