// A node of a benchmark: does with its threads what the coordinator at the other end of a control
// connection asks for (coordination.h).
//
// Whoever has such a connection can be a node: a process that the tool started on this host, one
// that waits with --listen, or the rank of a job that a launcher started.
#pragma once

#include <cstdint>
#include <string>

#include "verbena/connection.h"
#include "verbena/device.h"
#include "verbena/status.h"

namespace verbena::bench {

// Introduces the node, then serves points until the coordinator says bye; then ok. A point that
// fails is reported to the coordinator and the next one can follow; an error is returned where
// nothing can follow:
//   kUnavailable        the coordinator is gone, or the user interrupted
//   kProtocolViolation  it is none of this release
// `secret` is the job's: the node's threads listen with it on `address`, or, if that is empty, on
// the address of this host that `control` uses. `token` goes into the introduction.
Status serve_coordinator(const Device& device, const ProtectionDomain& domain,
                         const JobSecret& secret, ControlConnection& control, uint64_t token,
                         std::string address = {});

}  // namespace verbena::bench
