// Address vectors: the addresses that a program knows, by number.
#pragma once

#include <rdma/fi_domain.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "src/ofi/domain.h"
#include "src/ofi/event_queue.h"
#include "verbena/message.h"

namespace verbena::ofi {

// Under the domain's lock.
struct AddressVector : fid_av {
  using Handle = fid_av;
  AddressVector(Domain& of, bool shows_events, void* context);

  Domain& domain;
  const bool asynchronous;  // insertions are told by the event queue
  EventQueue* events = nullptr;
  uint32_t endpoints = 0;  // bound to it
  // By fi_addr_t, for tables and maps alike. What was removed is all zeros.
  std::vector<MessengerAddress> addresses;
  // The first number of each address.
  std::map<MessengerAddress, fi_addr_t> numbers;
};

int open_address_vector(fid_domain* domain, fi_av_attr* attributes, fid_av** vector, void* context);

}  // namespace verbena::ofi
