#include <cerrno>

#include "src/device/explain.h"
#include "src/device/verbs_control.h"
#include "verbena/device.h"

namespace verbena {

Result<MemoryRegion> MemoryRegion::create(const ProtectionDomain& domain, void* address,
                                          uint64_t length_bytes, unsigned access) {
  const VerbsControl& control = domain.control();
  ibv_mr* region = control.reg_mr(domain.get(), address, length_bytes,
                                  reinterpret_cast<uint64_t>(address), access);
  if (region == nullptr) return explain_registration_error(domain, length_bytes, access, errno);
  return MemoryRegion({region, control.dereg_mr, control});
}

Result<MemoryRegion> MemoryRegion::create_in_place(const ProtectionDomain& domain, void* address,
                                                   uint64_t length_bytes, unsigned access) {
  const VerbsControl& control = domain.control();
  if (control.reg_mr_in_place == nullptr) return create(domain, address, length_bytes, access);
  ibv_mr* region = control.reg_mr_in_place(domain.get(), address, length_bytes,
                                           reinterpret_cast<uint64_t>(address), access);
  if (region == nullptr) return explain_registration_error(domain, length_bytes, access, errno);
  return MemoryRegion({region, control.dereg_mr, control});
}

}  // namespace verbena
