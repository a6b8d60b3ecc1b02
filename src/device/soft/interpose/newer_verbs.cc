// Verbs of libibverbs versions 57 and newer that take an object: soft0 has registration by
// attributes, buffers and the port's speed, and the others must not look behind its structures
// either. The oldest supported version does not declare them, so arguments are passed on as they
// come, and assembler names keep these definitions apart from the declarations of newer headers.
#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <unordered_map>

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

// Of ibv_alloc_buf(): memory of the process, as of devices that need no other.
struct OwnBuffer {
  ibv_pd* domain = nullptr;
  void* address = nullptr;
  size_t size_bytes = 0;
};

// The buffers of soft0's domains, by the handles that programs have; all others are libibverbs'.
class OwnBuffers {
 public:
  // The handle, or null.
  void* add(ibv_pd* domain, size_t size_bytes) {
    OwnBuffer made{.domain = domain, .size_bytes = size_bytes};
    const auto page_bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    if (const int error = posix_memalign(&made.address, page_bytes, size_bytes); error != 0) {
      errno = error;
      return nullptr;
    }
    const std::lock_guard guard(mutex_);
    buffers_.emplace(made.address, made);
    return made.address;
  }
  bool has(const void* handle) {
    const std::lock_guard guard(mutex_);
    return buffers_.contains(handle);
  }
  bool may_register(const ibv_pd* domain, const void* handle, const void* address,
                    size_t length_bytes) {
    const std::lock_guard guard(mutex_);
    const auto found = buffers_.find(handle);
    if (found == buffers_.end() || found->second.domain != domain) return false;
    const OwnBuffer& buffer = found->second;
    const auto start = reinterpret_cast<uintptr_t>(buffer.address);
    const auto asked = reinterpret_cast<uintptr_t>(address);
    return asked >= start && asked - start <= buffer.size_bytes &&
           length_bytes <= buffer.size_bytes - (asked - start);
  }
  // False if it is none of these.
  bool release(const void* handle) {
    void* address = nullptr;
    {
      const std::lock_guard guard(mutex_);
      const auto found = buffers_.find(handle);
      if (found == buffers_.end()) return false;
      address = found->second.address;
      buffers_.erase(found);
    }
    std::free(address);
    return true;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<const void*, OwnBuffer> buffers_;  // under mutex_
};

// Never destroyed: programs free buffers when they end, too.
OwnBuffers& own_buffers() {
  static auto* const buffers = new OwnBuffers;
  return *buffers;
}

// struct ibv_mr_init_attr, of which a program may have more or less: a field is looked at where its
// bit says that it is there.
struct RegionWish {
  size_t length_bytes;
  int access;
  uint64_t fields;
  uint64_t iova;
  void* address;
  int fd;
  uint64_t fd_offset;
  void* dma_handle;
  void* buffer;
};
constexpr uint64_t kWithIova = 1 << 0;
constexpr uint64_t kWithAddress = 1 << 1;
constexpr uint64_t kWithFd = 1 << 2;
constexpr uint64_t kWithFdOffset = 1 << 3;
constexpr uint64_t kWithBuffer = 1 << 5;

// 0 if soft0 can register it, else the errno value that libibverbs or a device has for it.
int check_wish(ibv_pd* domain, const RegionWish& wish) {
  const auto has = [&wish](uint64_t fields) { return (wish.fields & fields) == fields; };
  constexpr uint64_t kKnown = kWithIova | kWithAddress | kWithFd | kWithFdOffset | kWithBuffer;
  if ((wish.fields & ~kKnown) != 0) return EOPNOTSUPP;
  if (has(kWithFd)) {
    const bool whole = has(kWithFdOffset | kWithIova) && !has(kWithAddress) && !has(kWithBuffer);
    return whole ? EOPNOTSUPP : EINVAL;  // of a DMA-buf
  }
  if (!has(kWithAddress) || has(kWithFdOffset)) return EINVAL;
  const bool may_be =
      !has(kWithBuffer) ||
      own_buffers().may_register(domain, wish.buffer, wish.address, wish.length_bytes);
  return may_be ? 0 : EINVAL;
}

ibv_mr* register_required(ibv_pd* domain, void* address, size_t length_bytes, uint64_t iova,
                          int access, const char* verb) {
  const unsigned needed = static_cast<unsigned>(access) & ~IBV_ACCESS_OPTIONAL_RANGE;
  return reported(control().reg_mr(domain, address, length_bytes, iova, needed), verb);
}

}  // namespace

extern "C" {

void* alloc_dmah(ibv_context* context, void* attributes) VERBENA_EXPORT_AS(ibv_alloc_dmah);
void* alloc_dmah(ibv_context* context, void* attributes) {
  if (owns(context)) return none();
  return forward<void*>("ibv_alloc_dmah", "IBVERBS_1.15", nullptr, context, attributes);
}

ibv_mr* reg_mr_ex(ibv_pd* domain, RegionWish* wish) VERBENA_EXPORT_AS(ibv_reg_mr_ex);
ibv_mr* reg_mr_ex(ibv_pd* domain, RegionWish* wish) {
  if (!owns(domain)) {
    return forward<ibv_mr*>("ibv_reg_mr_ex", "IBVERBS_1.15", nullptr, domain, wish);
  }
  if (const int error = check_wish(domain, *wish); error != 0) {
    errno = error;
    return nullptr;
  }
  const uint64_t iova =
      (wish->fields & kWithIova) != 0 ? wish->iova : reinterpret_cast<uint64_t>(wish->address);
  return register_required(domain, wish->address, wish->length_bytes, iova, wish->access,
                           "ibv_reg_mr_ex");
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
  if (owns(context)) {
    constexpr uint64_t kSpeed = 1000;  // of 100 Mb/s: 4X EDR
    ibv_port_attr attributes;
    const auto number = static_cast<uint8_t>(port);
    const int error =
        number != port ? EINVAL : control().query_port(checked(context), number, &attributes);
    if (error != 0) return reported(error, "ibv_query_port_speed");
    *speed = kSpeed;
    return 0;
  }
  return forward<int>("ibv_query_port_speed", "IBVERBS_1.16", EOPNOTSUPP, context, port, speed);
}

void* alloc_buf(ibv_pd* domain, size_t size, void** buffer) VERBENA_EXPORT_AS(ibv_alloc_buf);
void* alloc_buf(ibv_pd* domain, size_t size, void** buffer) {
  if (!owns(domain)) {
    return forward<void*>("ibv_alloc_buf", "IBVERBS_1.17", nullptr, domain, size, buffer);
  }
  if (!is_open(domain != nullptr ? domain->context : nullptr, "ibv_alloc_buf")) return nullptr;
  void* made = own_buffers().add(domain, size);
  // The handle needs no other place than the memory.
  if (made != nullptr) *buffer = made;
  return made;
}

void* reg_buf_mr(ibv_pd* domain, void* buffer, void* address, size_t length_bytes, int access)
    VERBENA_EXPORT_AS(ibv_reg_buf_mr);
void* reg_buf_mr(ibv_pd* domain, void* buffer, void* address, size_t length_bytes, int access) {
  if (!owns(domain)) {
    return forward<void*>("ibv_reg_buf_mr", "IBVERBS_1.17", nullptr, domain, buffer, address,
                          length_bytes, access);
  }
  if (!own_buffers().may_register(domain, buffer, address, length_bytes)) {
    errno = EINVAL;
    return nullptr;
  }
  return register_required(domain, address, length_bytes, reinterpret_cast<uint64_t>(address),
                           access, "ibv_reg_buf_mr");
}

void free_buf(void* buffer) VERBENA_EXPORT_AS(ibv_free_buf);
void free_buf(void* buffer) {
  if (buffer == nullptr || own_buffers().release(buffer)) return;
  if (void* installed = find_installed_if_any("ibv_free_buf", "IBVERBS_1.17"); installed != nullptr)
    reinterpret_cast<void (*)(void*)>(installed)(buffer);
}

int export_buf_dmabuf_fd(void* buffer) VERBENA_EXPORT_AS(ibv_export_buf_dmabuf_fd);
int export_buf_dmabuf_fd(void* buffer) {
  if (buffer == nullptr || own_buffers().has(buffer)) {
    errno = ENODATA;  // no DMA-buf is behind it
    return -1;
  }
  return forward<int>("ibv_export_buf_dmabuf_fd", "IBVERBS_1.18", -1, buffer);
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
