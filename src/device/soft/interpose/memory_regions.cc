// Protection domains and memory regions.
#include "src/device/soft/interpose/installed.h"

using namespace verbena::soft;             // NOLINT: definitions below are global
using namespace verbena::soft::interpose;  // NOLINT

namespace {

ibv_mr* register_soft(ibv_pd* domain, void* address, size_t length_bytes, uint64_t iova,
                      unsigned access, const char* verb) {
  return reported(control().reg_mr(domain, address, length_bytes, iova, access), verb);
}

}  // namespace

VERBENA_EXPORT ibv_pd* ibv_alloc_pd(ibv_context* context) {
  if (owns(context)) return reported(control().alloc_pd(checked(context)), "ibv_alloc_pd");
  return VERBENA_INSTALLED(ibv_alloc_pd, "IBVERBS_1.1")(context);
}

VERBENA_EXPORT int ibv_dealloc_pd(ibv_pd* domain) {
  if (owns(domain)) return reported(control().dealloc_pd(domain), "ibv_dealloc_pd");
  return VERBENA_INSTALLED(ibv_dealloc_pd, "IBVERBS_1.1")(domain);
}

VERBENA_EXPORT ibv_mr* ibv_reg_mr(ibv_pd* domain, void* address, size_t length_bytes, int access) {
  if (owns(domain)) {
    return register_soft(domain, address, length_bytes, reinterpret_cast<uint64_t>(address),
                         static_cast<unsigned>(access), "ibv_reg_mr");
  }
  return VERBENA_INSTALLED(ibv_reg_mr, "IBVERBS_1.1")(domain, address, length_bytes, access);
}

VERBENA_EXPORT ibv_mr* ibv_reg_mr_iova(ibv_pd* domain, void* address, size_t length_bytes,
                                       uint64_t iova, int access) {
  if (owns(domain)) {
    return register_soft(domain, address, length_bytes, iova, static_cast<unsigned>(access),
                         "ibv_reg_mr_iova");
  }
  return VERBENA_INSTALLED(ibv_reg_mr_iova, "IBVERBS_1.7")(domain, address, length_bytes, iova,
                                                           access);
}

VERBENA_EXPORT ibv_mr* ibv_reg_mr_iova2(ibv_pd* domain, void* address, size_t length_bytes,
                                        uint64_t iova, unsigned access) {
  if (owns(domain)) {
    // Optional flags, such as relaxed ordering, may be ignored by definition.
    return register_soft(domain, address, length_bytes, iova, access & ~IBV_ACCESS_OPTIONAL_RANGE,
                         "ibv_reg_mr");
  }
  return VERBENA_INSTALLED(ibv_reg_mr_iova2, "IBVERBS_1.8")(domain, address, length_bytes, iova,
                                                            access);
}

VERBENA_EXPORT ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* domain, uint64_t offset, size_t length_bytes,
                                         uint64_t iova, int fd, int access) {
  if (owns(domain)) {
    not_supported();
    return nullptr;
  }
  return VERBENA_INSTALLED(ibv_reg_dmabuf_mr, "IBVERBS_1.12")(domain, offset, length_bytes, iova,
                                                              fd, access);
}

VERBENA_EXPORT int ibv_rereg_mr(ibv_mr* region, int flags, ibv_pd* domain, void* address,
                                size_t length_bytes, int access) {
  if (owns(region)) {
    return reported(rnic().extended->rereg_mr(region, flags, domain, address, length_bytes, access),
                    "ibv_rereg_mr");
  }
  return VERBENA_INSTALLED(ibv_rereg_mr, "IBVERBS_1.1")(region, flags, domain, address,
                                                        length_bytes, access);
}

VERBENA_EXPORT int ibv_dereg_mr(ibv_mr* region) {
  if (owns(region)) return reported(control().dereg_mr(region), "ibv_dereg_mr");
  return VERBENA_INSTALLED(ibv_dereg_mr, "IBVERBS_1.1")(region);
}

// Sharing objects between processes by handle belongs to kernel devices.

VERBENA_EXPORT ibv_pd* ibv_import_pd(ibv_context* context, uint32_t handle) {
  if (owns(context)) {
    not_supported();
    return nullptr;
  }
  return VERBENA_INSTALLED(ibv_import_pd, "IBVERBS_1.10")(context, handle);
}

VERBENA_EXPORT void ibv_unimport_pd(ibv_pd* domain) {
  if (owns(domain)) return;
  VERBENA_INSTALLED(ibv_unimport_pd, "IBVERBS_1.10")(domain);
}

VERBENA_EXPORT ibv_mr* ibv_import_mr(ibv_pd* domain, uint32_t handle) {
  if (owns(domain)) {
    not_supported();
    return nullptr;
  }
  return VERBENA_INSTALLED(ibv_import_mr, "IBVERBS_1.10")(domain, handle);
}

VERBENA_EXPORT void ibv_unimport_mr(ibv_mr* region) {
  if (owns(region)) return;
  VERBENA_INSTALLED(ibv_unimport_mr, "IBVERBS_1.10")(region);
}

VERBENA_EXPORT ibv_dm* ibv_import_dm(ibv_context* context, uint32_t handle) {
  if (owns(context)) {
    not_supported();
    return nullptr;
  }
  return VERBENA_INSTALLED(ibv_import_dm, "IBVERBS_1.13")(context, handle);
}
