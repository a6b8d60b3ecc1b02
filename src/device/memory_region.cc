#include <cerrno>
#include <utility>

#include "src/device/explain.h"
#include "src/device/verbs_control.h"
#include "verbena/device.h"

namespace verbena {

namespace {

Result<internal::VerbsHandle<ibv_mr>> register_by(decltype(VerbsControl::reg_mr) call,
                                                  const ProtectionDomain& domain, void* address,
                                                  uint64_t length_bytes, unsigned access) {
  const VerbsControl& control = domain.control();
  ibv_mr* const region = (call != nullptr ? call : control.reg_mr)(
      domain.get(), address, length_bytes, reinterpret_cast<uint64_t>(address), access);
  if (region == nullptr) return explain_registration_error(domain, length_bytes, access, errno);
  return internal::VerbsHandle<ibv_mr>(region, control);
}

}  // namespace

Result<MemoryRegion> MemoryRegion::create(const ProtectionDomain& domain, void* address,
                                          uint64_t length_bytes, unsigned access) {
  VERBENA_ASSIGN_OR_RETURN(
      auto region, register_by(domain.control().reg_mr, domain, address, length_bytes, access));
  return MemoryRegion(std::move(region));
}

Result<MemoryRegion> MemoryRegion::create_in_place(const ProtectionDomain& domain, void* address,
                                                   uint64_t length_bytes, unsigned access) {
  VERBENA_ASSIGN_OR_RETURN(auto region, register_by(domain.control().reg_mr_in_place, domain,
                                                    address, length_bytes, access));
  return MemoryRegion(std::move(region));
}

Result<MemoryRegion> MemoryRegion::create_unasked(const ProtectionDomain& domain, void* address,
                                                  uint64_t length_bytes, unsigned access) {
  VERBENA_ASSIGN_OR_RETURN(auto region, register_by(domain.control().reg_mr_unasked, domain,
                                                    address, length_bytes, access));
  return MemoryRegion(std::move(region));
}

}  // namespace verbena
