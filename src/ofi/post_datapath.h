// What the calls for messages and those for tagged messages have in common.
#pragma once

#include <rdma/fi_endpoint.h>

#include <cstdint>
#include <span>

#include "src/ofi/endpoint.h"
#include "verbena/message.h"

namespace verbena::ofi {

inline Endpoint& endpoint_of(fid_ep* handle) { return *static_cast<Endpoint*>(handle); }

struct Posted {
  std::span<const iovec> pieces;
  fi_addr_t peer;
  uint64_t tag = 0;
  uint64_t ignore = 0;
  uint64_t data = 0;
  void* context = nullptr;
  uint64_t flags = 0;      // of libfabric
  uint32_t kind = 0;       // kMessageUntagged, kMessageData
  bool own_flags = false;  // not those of the endpoint
  bool silent = false;     // fi_inject: no entry, whatever the flags say
};

// Errors of libfabric, or 0.
ssize_t send(fid_ep* handle, const Posted& posted);
ssize_t receive(fid_ep* handle, const Posted& posted);
// With FI_PEEK, FI_CLAIM or FI_DISCARD.
ssize_t look_for(fid_ep* handle, const Posted& posted);

}  // namespace verbena::ofi
