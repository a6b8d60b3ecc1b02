// Nodes and services, as programs name endpoints in fi_getinfo and fi_av_insertsvc.
#pragma once

#include <rdma/fabric.h>

#include <cstdint>
#include <span>
#include <vector>

#include "verbena/connection.h"
#include "verbena/message.h"
#include "verbena/status.h"

namespace verbena::ofi {

// The place that a node and a service stand for, as the system's resolver knows them; without a
// node, `no_node` is its host. With FI_NUMERICHOST nothing is looked up. kNotFound: there is none.
Result<MessengerAddress> find_place(const char* node, const char* service, const char* no_node,
                                    uint64_t flags);

// Where the endpoints of an info are to be reached, and what they talk to, as fi_getinfo is asked:
// copies of what its hints have, but for what `node` and `service` name. -FI_ENODATA: there is no
// such node, or the hints have no addresses of this provider.
int fill_addresses(const char* node, const char* service, uint64_t flags, const fi_info* hints,
                   fi_info& info);

// The addresses that stand for places, as who listens there tells them; any other ones as they are.
// Blocks a few seconds where nobody listens, as long for 128 such places as for one.
std::vector<Result<MessengerAddress>> known_addresses(std::span<const MessengerAddress> addresses,
                                                      const JobSecret& secret);

}  // namespace verbena::ofi
