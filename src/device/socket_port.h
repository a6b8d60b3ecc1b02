// The ports of an RNIC on the sockets of a machine.
#pragma once

#include <string_view>

#include "verbena/device.h"
#include "verbena/status.h"

namespace verbena {

// Opens the RNIC `name` by the port that is attached to that socket, as simulated ones have one on
// each ("memsem" figure 9). Other devices are the same from every socket.
//   kInvalidArgument  the simulated node has no such socket
//   and what Device::open() says
Result<Device> open_port(std::string_view name, int socket);

}  // namespace verbena
