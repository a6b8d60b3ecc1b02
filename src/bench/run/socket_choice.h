// Which socket of this machine, or of the simulated node, a point means.
#pragma once

#include "src/bench/experiment/socket_place.h"
#include "verbena/device.h"
#include "verbena/status.h"

namespace verbena::bench {

// kAnySocket for SocketPlace::kAny. Where the system does not say what the device is attached to,
// it counts as attached to the first one.
//   kUnsupported  there is one socket only
Result<int> choose_socket(SocketPlace place, const Device& device);

// The calling thread runs there from now on.
Status run_at(SocketPlace place, const Device& device);

}  // namespace verbena::bench
