#include <fmt/format.h>

#include <cerrno>

#include "src/device/explain.h"
#include "src/device/verbs_control.h"
#include "verbena/device.h"

namespace verbena {

Result<ProtectionDomain> ProtectionDomain::create(const Device& device) {
  const VerbsControl& control = device.control();
  ibv_pd* domain = control.alloc_pd(device.get());
  if (domain == nullptr) {
    return verbs_error(
        control, fmt::format("cannot make a protection domain on {}", device.info().name), errno);
  }
  return ProtectionDomain({domain, control});
}

}  // namespace verbena
