// Lists soft0 and others of its kind beside the real devices, opens and closes them.
#include <algorithm>
#include <mutex>
#include <new>
#include <unordered_map>

#include "src/device/soft/interpose/installed.h"
#include "src/device/soft/interpose/shown_paths.h"

namespace verbena::soft::interpose {
namespace {

// The installed library's list behind each list that was handed out: freeing it releases its
// devices.
struct DeviceLists {
  std::mutex mutex;
  std::unordered_map<ibv_device**, ibv_device**> installed_list_of;
};

DeviceLists& device_lists() {
  static DeviceLists* const lists = new DeviceLists;  // used until the process ends
  return *lists;
}

}  // namespace
}  // namespace verbena::soft::interpose

using namespace verbena::soft;             // NOLINT: definitions below are global
using namespace verbena::soft::interpose;  // NOLINT

// soft0 is the first: programs that name no device take that one, and it is what `verbena run` is
// for.
VERBENA_EXPORT ibv_device** ibv_get_device_list(int* num_devices) {
  int installed_count = 0;
  ibv_device** installed = nullptr;
  {
    const RealPaths guard;  // it looks below /sys, and is to find the devices of the kernel there
    installed = VERBENA_INSTALLED(ibv_get_device_list, "IBVERBS_1.1")(&installed_count);
  }
  if (installed == nullptr) installed_count = 0;  // a kernel without RDMA
  const size_t soft_count = rnic().device_count;
  const auto count = static_cast<size_t>(installed_count) + soft_count;
  auto** list = new (std::nothrow) ibv_device* [count + 1] {};
  if (list == nullptr) {
    if (installed != nullptr) {
      VERBENA_INSTALLED(ibv_free_device_list, "IBVERBS_1.1")(installed);
    }
    errno = ENOMEM;
    return nullptr;
  }
  std::copy_n(rnic().devices, soft_count, list);
  std::copy_n(installed, installed_count, list + soft_count);
  {
    DeviceLists& lists = device_lists();
    std::lock_guard guard(lists.mutex);
    lists.installed_list_of.emplace(list, installed);
  }
  if (num_devices != nullptr) *num_devices = static_cast<int>(count);
  return list;
}

VERBENA_EXPORT void ibv_free_device_list(ibv_device** list) {
  ibv_device** installed = list;
  {
    DeviceLists& lists = device_lists();
    std::lock_guard guard(lists.mutex);
    auto entry = lists.installed_list_of.find(list);
    if (entry != lists.installed_list_of.end()) {
      installed = entry->second;
      lists.installed_list_of.erase(entry);
      delete[] list;
    }
  }
  if (installed != nullptr) VERBENA_INSTALLED(ibv_free_device_list, "IBVERBS_1.1")(installed);
}

VERBENA_EXPORT const char* ibv_get_device_name(ibv_device* device) {
  if (owns(device)) return device->name;
  return VERBENA_INSTALLED(ibv_get_device_name, "IBVERBS_1.1")(device);
}

VERBENA_EXPORT __be64 ibv_get_device_guid(ibv_device* device) {
  if (owns(device)) return rnic().device_guid(device);
  return VERBENA_INSTALLED(ibv_get_device_guid, "IBVERBS_1.1")(device);
}

VERBENA_EXPORT int ibv_get_device_index(ibv_device* device) {
  if (owns(device)) return -1;  // the kernel does not know it
  return VERBENA_INSTALLED(ibv_get_device_index, "IBVERBS_1.9")(device);
}

VERBENA_EXPORT ibv_context* ibv_open_device(ibv_device* device) {
  if (owns(device)) return reported(rnic().open_device(device), "ibv_open_device");
  return VERBENA_INSTALLED(ibv_open_device, "IBVERBS_1.1")(device);
}

VERBENA_EXPORT int ibv_close_device(ibv_context* context) {
  if (owns(context)) {
    const int error = rnic().close_device(checked(context));
    forget(context);
    return reported(error, "ibv_close_device");
  }
  forget(context);
  return VERBENA_INSTALLED(ibv_close_device, "IBVERBS_1.1")(context);
}
