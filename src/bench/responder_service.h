// The responder's side of a benchmark: does what the requester at the other end of a control
// connection asks for (messages.h).
#pragma once

#include "verbena/connection.h"
#include "verbena/device.h"
#include "verbena/status.h"

namespace verbena::bench {

// Serves points until the requester says bye; then ok. A point that fails is reported to the
// requester and the next one can follow; an error is returned where nothing can follow:
//   kUnavailable        the requester is gone, or the user interrupted
//   kProtocolViolation  it is none of this release
Status serve_requester(const Device& device, const ProtectionDomain& domain,
                       ControlConnection& control);

}  // namespace verbena::bench
