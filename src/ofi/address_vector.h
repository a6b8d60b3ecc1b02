// Address vectors: the addresses that a program knows, by number.
#pragma once

#include <rdma/fi_domain.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "src/ofi/domain.h"
#include "src/ofi/event_queue.h"
#include "verbena/message.h"

namespace verbena::ofi {

struct Endpoint;

// Under the domain's lock.
struct AddressVector : fid_av {
  using Handle = fid_av;
  AddressVector(Domain& of, bool shows_events, void* context);

  // The least number of an address; FI_ADDR_NOTAVAIL if it has none.
  fi_addr_t number_of(const MessengerAddress& address) const;

  Domain& domain;
  const bool asynchronous;  // insertions are told by the event queue
  EventQueue* events = nullptr;
  std::vector<Endpoint*> endpoints;  // bound to it
  // By fi_addr_t, for tables and maps alike. What was removed is all zeros.
  std::vector<MessengerAddress> addresses;
  // The same by address, which may have several numbers.
  std::set<std::pair<MessengerAddress, fi_addr_t>> numbers;
};

int open_address_vector(fid_domain* domain, fi_av_attr* attributes, fid_av** vector, void* context);

}  // namespace verbena::ofi
