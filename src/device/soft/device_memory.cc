// Device memory, which is memory of the memory file here; and advice on regions.
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "src/device/soft/control.h"
#include "src/device/soft/extended.h"
#include "src/device/soft/objects.h"
#include "src/device/soft/region_view.h"

namespace verbena::soft {
namespace {

// Programs rely on what all devices allow.
constexpr uint64_t kDeviceMemoryUnit = 4;

std::atomic<uint64_t> device_memory_in_use_bytes{0};

// The place in device memory, or null as EFAULT.
std::byte* place_in(ibv_dm* verbs, uint64_t offset, size_t length_bytes) {
  if (check_valid<DeviceMemory>(verbs) != 0) return nullptr;
  const auto& memory = *reinterpret_cast<DeviceMemory*>(verbs);
  if (offset % kDeviceMemoryUnit != 0 || length_bytes % kDeviceMemoryUnit != 0 ||
      offset > memory.size_bytes || length_bytes > memory.size_bytes - offset) {
    fail(EFAULT, fmt::format("soft0: {} bytes at {} of {} bytes of device memory; they must lie in "
                             "it, at multiples of {}",
                             length_bytes, offset, memory.size_bytes, kDeviceMemoryUnit));
    return nullptr;
  }
  return memory.bytes + offset;
}

int memcpy_to_dm(ibv_dm* memory, uint64_t offset, const void* source, size_t length_bytes) {
  std::byte* at = place_in(memory, offset, length_bytes);
  if (at == nullptr) return errno;
  memcpy(at, source, length_bytes);
  return 0;
}

int memcpy_from_dm(void* destination, ibv_dm* memory, uint64_t offset, size_t length_bytes) {
  const std::byte* at = place_in(memory, offset, length_bytes);
  if (at == nullptr) return errno;
  memcpy(destination, at, length_bytes);
  return 0;
}

bool take_device_memory(uint64_t length_bytes) {
  uint64_t before = device_memory_in_use_bytes.load(std::memory_order_relaxed);
  do {
    if (length_bytes == 0 || length_bytes > kMaxDeviceMemoryBytes - before) return false;
  } while (!device_memory_in_use_bytes.compare_exchange_weak(before, before + length_bytes));
  return true;
}

}  // namespace

ibv_dm* alloc_dm(ibv_context* context, ibv_alloc_dm_attr* attributes) {
  if (check_valid_context(context) != 0) return nullptr;
  // Memory begins at a page.
  constexpr uint32_t kMaxLogAlignment = 12;
  if (attributes->comp_mask != 0 || attributes->log_align_req > kMaxLogAlignment) {
    fail(EINVAL, fmt::format("soft0: device memory with the fields {:#x} (comp_mask) at multiples "
                             "of 2^{}; possible are no fields and 2^{}",
                             attributes->comp_mask, attributes->log_align_req, kMaxLogAlignment));
    return nullptr;
  }
  if (!take_device_memory(attributes->length)) {
    fail(ENOMEM,
         fmt::format("soft0: {} bytes of device memory; a process has 1 to {}, of which {} "
                     "are in use; free some (ibv_free_dm) or ask for less",
                     attributes->length, kMaxDeviceMemoryBytes, device_memory_in_use_bytes.load()));
    return nullptr;
  }
  Rnic& rnic = *as_context(context).rnic;
  Result<void*> bytes = rnic.allocate_shared(attributes->length);
  if (!bytes.ok()) {
    device_memory_in_use_bytes.fetch_sub(attributes->length);
    fail(bytes.status());
    return nullptr;
  }
  auto* memory = new DeviceMemory;
  memory->verbs.context = context;
  memory->verbs.memcpy_to_dm = memcpy_to_dm;
  memory->verbs.memcpy_from_dm = memcpy_from_dm;
  memory->rnic = &rnic;
  memory->bytes = static_cast<std::byte*>(*bytes);
  memory->size_bytes = attributes->length;
  as_context(context).users.fetch_add(1);
  make_valid(*memory, context);
  return &memory->verbs;
}

int free_dm(ibv_dm* verbs) {
  if (const int error = check_valid<DeviceMemory>(verbs); error != 0) return error;
  auto& memory = *reinterpret_cast<DeviceMemory*>(verbs);
  if (memory.users.load() != 0) {
    return fail(EBUSY, "soft0: the device memory still has regions; deregister them first");
  }
  memory.rnic->free_shared(memory.bytes, memory.size_bytes);
  device_memory_in_use_bytes.fetch_sub(memory.size_bytes);
  end_use(as_context(verbs->context).users);
  retire(&memory);
  return 0;
}

ibv_mr* reg_dm_mr(ibv_pd* pd, ibv_dm* verbs, uint64_t offset, size_t length_bytes,
                  unsigned access) {
  if (check_valid<DeviceMemory>(verbs) != 0) return nullptr;
  auto& memory = *reinterpret_cast<DeviceMemory*>(verbs);
  if ((access & IBV_ACCESS_ZERO_BASED) == 0 || offset > memory.size_bytes ||
      length_bytes > memory.size_bytes - offset) {
    fail(EINVAL, fmt::format("soft0: a region of {} bytes at {} of {} bytes of device memory with "
                             "access {:#x}; it must lie in it, with IBV_ACCESS_ZERO_BASED",
                             length_bytes, offset, memory.size_bytes, access));
    return nullptr;
  }
  ibv_mr* region = reg_mr(pd, memory.bytes + offset, length_bytes, 0, access);
  if (region == nullptr) return nullptr;
  memory.users.fetch_add(1);
  as_region(region).device_memory = &memory;
  region->addr = nullptr;  // the program has no address of it
  return region;
}

// Brings pages in, as far as they are not.
int advise_mr(ibv_pd* pd, ibv_advise_mr_advice advice, uint32_t flags, ibv_sge* list,
              uint32_t count) {
  if (const int error = check_valid<Domain>(pd); error != 0) return error;
  unsigned access = 0;
  switch (advice) {
    case IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE:
      access = IBV_ACCESS_LOCAL_WRITE;
      break;
    case IBV_ADVISE_MR_ADVICE_PREFETCH:
    case IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT:
      break;
    default:
      return fail(EOPNOTSUPP,
                  fmt::format("soft0: does not know the advice {}", static_cast<int>(advice)));
  }
  if (count == 0 || list == nullptr || (flags & ~unsigned{IBV_ADVISE_MR_FLAG_FLUSH}) != 0) {
    return fail(EINVAL, "soft0: advice needs a list of memory, and has one flag");
  }
  const RegionEntry* regions = as_context(pd->context).rnic->own_regions();
  const bool must_be_there = advice != IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT;
  for (uint32_t i = 0; i < count; ++i) {
    const ibv_sge& sge = list[i];
    std::byte* const bytes =
        own_memory(regions, as_domain(pd).id, sge.addr, sge.length, sge.lkey, access);
    // To touch it brings it in. What is not of the whole address space is there already.
    // Regions of ibv_alloc_null_mr() have nothing, and messages use less of what stands for it.
    const auto is_brought_in = [&] {
      if (is_null_region(regions[region_index(sge.lkey)], sge.lkey, as_domain(pd).id)) return true;
      return access != 0 ? bring_in_for_writing(bytes, sge.length)
                         : is_there(bytes, sge.length, /*writes=*/false);
    };
    if (bytes == nullptr || (must_be_there && sge.length != 0 && !is_brought_in())) {
      return fail(EFAULT, fmt::format("soft0: {} bytes at {:#x} are not in the region {:#x} with "
                                      "this access, or not mapped",
                                      sge.length, sge.addr, sge.lkey));
    }
  }
  return 0;
}

}  // namespace verbena::soft
