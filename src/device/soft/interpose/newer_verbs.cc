// Verbs of libibverbs versions 59 and newer that take an object: soft0 has none of them, but they
// must not look behind its structures either. The oldest supported version does not declare them,
// so their arguments are passed on as they come, and assembler names keep these definitions apart
// from the declarations of newer headers.
#include "src/device/soft/interpose/installed.h"

using namespace verbena::soft;             // NOLINT: definitions below are global
using namespace verbena::soft::interpose;  // NOLINT

#define VERBENA_EXPORT_AS(name) asm(#name) __attribute__((visibility("default"), used))

namespace {

// Calls the installed function; where there is none, answers as a device without the feature.
template <typename Result, typename... Args>
Result forward(const char* name, const char* version, Result unsupported, Args... args) {
  void* installed = find_installed_if_any(name, version);
  if (installed == nullptr) {
    not_supported();
    return unsupported;
  }
  return reinterpret_cast<Result (*)(Args...)>(installed)(args...);
}

void* none() {
  not_supported();
  return nullptr;
}

}  // namespace

extern "C" {

void* alloc_dmah(ibv_context* context, void* attributes) VERBENA_EXPORT_AS(ibv_alloc_dmah);
void* alloc_dmah(ibv_context* context, void* attributes) {
  if (owns(context)) return none();
  return forward<void*>("ibv_alloc_dmah", "IBVERBS_1.15", nullptr, context, attributes);
}

void* reg_mr_ex(ibv_pd* domain, void* attributes) VERBENA_EXPORT_AS(ibv_reg_mr_ex);
void* reg_mr_ex(ibv_pd* domain, void* attributes) {
  if (owns(domain)) return none();
  return forward<void*>("ibv_reg_mr_ex", "IBVERBS_1.15", nullptr, domain, attributes);
}

int dm_export_dmabuf_fd(ibv_dm* memory) VERBENA_EXPORT_AS(ibv_dm_export_dmabuf_fd);
int dm_export_dmabuf_fd(ibv_dm* memory) {
  if (owns(memory)) {
    not_supported();
    return -1;
  }
  return forward<int>("ibv_dm_export_dmabuf_fd", "IBVERBS_1.16", -1, memory);
}

int query_port_speed(ibv_context* context, uint32_t port, uint64_t* speed)
    VERBENA_EXPORT_AS(ibv_query_port_speed);
int query_port_speed(ibv_context* context, uint32_t port, uint64_t* speed) {
  if (owns(context)) return not_supported();
  return forward<int>("ibv_query_port_speed", "IBVERBS_1.16", EOPNOTSUPP, context, port, speed);
}

void* alloc_buf(ibv_pd* domain, size_t size, void** buffer) VERBENA_EXPORT_AS(ibv_alloc_buf);
void* alloc_buf(ibv_pd* domain, size_t size, void** buffer) {
  if (owns(domain)) return none();
  return forward<void*>("ibv_alloc_buf", "IBVERBS_1.17", nullptr, domain, size, buffer);
}

void* reg_buf_mr(ibv_pd* domain, void* buffer, void* address, size_t length_bytes, int access)
    VERBENA_EXPORT_AS(ibv_reg_buf_mr);
void* reg_buf_mr(ibv_pd* domain, void* buffer, void* address, size_t length_bytes, int access) {
  if (owns(domain)) return none();
  return forward<void*>("ibv_reg_buf_mr", "IBVERBS_1.17", nullptr, domain, buffer, address,
                        length_bytes, access);
}

int query_comp_cntr_caps(ibv_context* context, void* caps, size_t size)
    VERBENA_EXPORT_AS(_ibv_query_comp_cntr_caps);
int query_comp_cntr_caps(ibv_context* context, void* caps, size_t size) {
  if (owns(context)) return not_supported();
  return forward<int>("_ibv_query_comp_cntr_caps", "IBVERBS_1.18", EOPNOTSUPP, context, caps, size);
}

void* create_comp_cntr(ibv_context* context, void* attributes)
    VERBENA_EXPORT_AS(ibv_create_comp_cntr);
void* create_comp_cntr(ibv_context* context, void* attributes) {
  if (owns(context)) return none();
  return forward<void*>("ibv_create_comp_cntr", "IBVERBS_1.18", nullptr, context, attributes);
}

int qp_attach_comp_cntr(ibv_qp* qp, void* counter, void* attributes)
    VERBENA_EXPORT_AS(ibv_qp_attach_comp_cntr);
int qp_attach_comp_cntr(ibv_qp* qp, void* counter, void* attributes) {
  if (owns(qp)) return not_supported();
  return forward<int>("ibv_qp_attach_comp_cntr", "IBVERBS_1.18", EOPNOTSUPP, qp, counter,
                      attributes);
}

}  // extern "C"
