#include "src/device/socket_port.h"

#include <fmt/format.h>

#include "src/device/sim/rnic_profile.h"

namespace verbena {

Result<Device> open_port(std::string_view name, int socket) {
  if (!name.starts_with(sim::kDevicePrefix)) return Device::open(name);
  return Device::open(fmt::format("{}{}{}", name, sim::kPortMark, socket));
}

}  // namespace verbena
