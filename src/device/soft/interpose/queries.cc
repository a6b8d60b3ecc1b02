// What a device, its port and its tables are.
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "src/device/soft/interpose/installed.h"
#include "src/device/soft/interpose/replace.h"

namespace verbena::soft::interpose {
namespace {

constexpr uint8_t kOnlyPort = 1;

int refuse(int error) {
  errno = error;
  return -1;
}

// The fields that a caller's structure has room for: newer versions append some.
int fill_gid_entry(ibv_context* context, uint32_t port, uint32_t index, void* entry,
                   size_t entry_size) {
  ibv_gid_entry full{};
  const int error = rnic().query_gid_entry(checked(context), port, index, &full);
  if (error != 0) return error;
  std::memcpy(entry, &full, entry_size < sizeof(full) ? entry_size : sizeof(full));
  return 0;
}

}  // namespace
}  // namespace verbena::soft::interpose

using namespace verbena::soft;             // NOLINT: definitions below are global
using namespace verbena::soft::interpose;  // NOLINT

VERBENA_EXPORT int ibv_query_device(ibv_context* context, ibv_device_attr* attributes) {
  if (owns(context)) {
    if (!is_open(context, "ibv_query_device")) return errno;
    return reported(control().query_device(context, attributes), "ibv_query_device");
  }
  return VERBENA_INSTALLED(ibv_query_device, "IBVERBS_1.1")(context, attributes);
}

VERBENA_EXPORT int ibv_query_port(ibv_context* context, uint8_t port,
                                  _compat_ibv_port_attr* attributes) {
  if (!owns(context)) {
    return VERBENA_INSTALLED(ibv_query_port, "IBVERBS_1.1")(context, port, attributes);
  }
  // Callers of this symbol have the structure of old, which ends before port_cap_flags2.
  ibv_port_attr full{};
  const int error = control().query_port(checked(context), port, &full);
  if (error != 0) return reported(error, "ibv_query_port");
  std::memcpy(static_cast<void*>(attributes), &full, offsetof(ibv_port_attr, port_cap_flags2));
  return 0;
}

VERBENA_EXPORT int ibv_query_gid(ibv_context* context, uint8_t port, int index, ibv_gid* gid) {
  if (owns(context))
    return reported(control().query_gid(checked(context), port, index, gid), "ibv_query_gid");
  return VERBENA_INSTALLED(ibv_query_gid, "IBVERBS_1.1")(context, port, index, gid);
}

VERBENA_EXPORT int _ibv_query_gid_ex(ibv_context* context, uint32_t port, uint32_t index,
                                     ibv_gid_entry* entry, uint32_t flags, size_t entry_size) {
  if (!owns(context)) {
    return VERBENA_INSTALLED(_ibv_query_gid_ex, "IBVERBS_1.11")(context, port, index, entry, flags,
                                                                entry_size);
  }
  const int error =
      flags != 0 ? EOPNOTSUPP : fill_gid_entry(context, port, index, entry, entry_size);
  errno = error;
  return error;
}

VERBENA_EXPORT ssize_t _ibv_query_gid_table(ibv_context* context, ibv_gid_entry* entries,
                                            size_t max_entries, uint32_t flags, size_t entry_size) {
  if (!owns(context)) {
    return VERBENA_INSTALLED(_ibv_query_gid_table, "IBVERBS_1.11")(context, entries, max_entries,
                                                                   flags, entry_size);
  }
  if (flags != 0) return -EOPNOTSUPP;
  ibv_port_attr port{};
  if (const int error = control().query_port(checked(context), kOnlyPort, &port); error != 0) {
    return -error;
  }
  size_t found = 0;
  auto* const bytes = reinterpret_cast<std::byte*>(entries);
  for (int index = 0; index < port.gid_tbl_len; ++index) {
    ibv_gid_entry entry{};
    const int error =
        fill_gid_entry(context, kOnlyPort, static_cast<uint32_t>(index), &entry, sizeof(entry));
    if (error == ENODATA) continue;
    if (error != 0) return -error;
    if (found == max_entries) return -EINVAL;
    std::memcpy(bytes + found++ * entry_size, &entry, std::min(entry_size, sizeof(entry)));
  }
  return static_cast<ssize_t>(found);
}

VERBENA_EXPORT int ibv_query_pkey(ibv_context* context, uint8_t port, int index, __be16* key) {
  if (!owns(context)) {
    return VERBENA_INSTALLED(ibv_query_pkey, "IBVERBS_1.1")(context, port, index, key);
  }
  if (!is_open(context, "ibv_query_pkey")) return -1;
  if (port != kOnlyPort || index != 0) return refuse(EINVAL);
  *key = kDefaultPartitionKey;  // the same in both byte orders
  return 0;
}

VERBENA_EXPORT int ibv_get_pkey_index(ibv_context* context, uint8_t port, __be16 key) {
  if (!owns(context)) {
    return VERBENA_INSTALLED(ibv_get_pkey_index, "IBVERBS_1.5")(context, port, key);
  }
  if (!is_open(context, "ibv_get_pkey_index")) return -1;
  if (port != kOnlyPort || key != kDefaultPartitionKey) return refuse(EINVAL);
  return 0;
}

// Private to libibverbs, of a version that changes with it (IBVERBS_PRIVATE_34, ...), but
// ibv_devinfo uses it. `type` is 0 for InfiniBand and RoCE version 1, else 1.
VERBENA_REPLACE(ibv_query_gid_type)
int verbena_ibv_query_gid_type(ibv_context* context, uint8_t port, unsigned index, int* type) {
  if (!owns(context)) {
    using Query = int (*)(ibv_context*, uint8_t, unsigned, int*);
    static const auto installed = reinterpret_cast<Query>(dlsym(RTLD_NEXT, "ibv_query_gid_type"));
    return installed(context, port, index, type);
  }
  if (!is_open(context, "ibv_query_gid_type")) return -1;
  ibv_gid_entry entry{};
  const int error = rnic().query_gid_entry(context, port, index, &entry);
  if (error != 0) return refuse(EINVAL);
  *type = entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? 1 : 0;
  return 0;
}
