// What the requesters of all protocols do before and beside the messages.
#pragma once

#include <cstdint>
#include <memory>

#include "src/rpc/connection_end.h"
#include "src/rpc/negotiation.h"
#include "verbena/rpc.h"

namespace verbena::rpc {

// Checks the options and agrees on the design with the responder.
Result<DesignAgreement> request_design(Protocol protocol, MarkLayout layout, const Device& device,
                                       ControlConnection& control, const RequesterOptions& options);
// The part behind it: the requester of the agreed design.
Result<std::unique_ptr<Requester>> connect_requester(const Device& device,
                                                     const ProtectionDomain& domain,
                                                     ControlConnection& control,
                                                     const RequesterOptions& options,
                                                     const DesignAgreement& agreed);

// Whether what was agreed can be done with a requester that was built for `layout`, over RC.
Status check_layout(Protocol protocol, MarkLayout layout, const DesignRequest& agreed);
// Whether a side that was built for a transport was asked for it.
Status check_built_for(Transport built_for, Transport asked);

EndOptions end_options(const RequesterOptions& options);

Status misused_post(uint32_t slot, uint32_t bytes, uint32_t pending, uint32_t max_bytes);

}  // namespace verbena::rpc
