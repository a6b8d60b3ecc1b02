#include "src/device/soft/null_region.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "src/base/file_descriptor.h"
#include "src/device/soft/control.h"
#include "src/device/soft/extended.h"
#include "src/device/soft/objects.h"

namespace verbena::soft {
namespace {

// What is dropped lies in this much memory, which is mapped as often as a message needs it.
constexpr uint64_t kDroppedBytes = 4 << 20;
static_assert(kMaxMessageBytes % kDroppedBytes == 0);

// Of the process, and never given back: requests may be using it.
struct NullMemory {
  std::byte* zeros = nullptr;
  std::byte* dropped = nullptr;
  int error = 0;  // an errno value
};

std::byte* map_zeros() {
  // Pages that are only read are all the kernel's one page of zeros.
  void* const zeros = mmap(nullptr, kMaxMessageBytes, PROT_READ,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return zeros == MAP_FAILED ? nullptr : static_cast<std::byte*>(zeros);
}

std::byte* map_dropped() {
  const FileDescriptor file(memfd_create("verbena null region", MFD_CLOEXEC));
  if (file.get() < 0 || ftruncate(file.get(), kDroppedBytes) != 0) return nullptr;
  void* const place = mmap(nullptr, kMaxMessageBytes, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (place == MAP_FAILED) return nullptr;
  auto* const dropped = static_cast<std::byte*>(place);
  for (uint64_t offset = 0; offset < kMaxMessageBytes; offset += kDroppedBytes) {
    if (mmap(dropped + offset, kDroppedBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
             file.get(), 0) == MAP_FAILED) {
      const int error = errno;
      munmap(place, kMaxMessageBytes);
      errno = error;
      return nullptr;
    }
  }
  return dropped;
}

NullMemory make_null_memory() {
  NullMemory made{.zeros = map_zeros()};
  if (made.zeros != nullptr) made.dropped = map_dropped();
  if (made.dropped == nullptr) {
    made.error = errno;
    if (made.zeros != nullptr) munmap(made.zeros, kMaxMessageBytes);
  }
  return made;
}

const NullMemory& null_memory() {
  static const NullMemory memory = make_null_memory();
  return memory;
}

}  // namespace

bool is_null_region(const RegionEntry& entry, uint32_t key, uint32_t domain) {
  const uint64_t stamp = entry.stamp.load(std::memory_order_acquire);
  return stamp != 0 && static_cast<uint32_t>(stamp) == key &&
         (entry.access.load(std::memory_order_relaxed) & kNullAccess) != 0 &&
         entry.domain.load(std::memory_order_relaxed) == domain;
}

std::byte* find_null_memory(const RegionEntry& entry, uint32_t key, uint32_t domain,
                            uint32_t access) {
  if (!is_null_region(entry, key, domain)) return nullptr;
  const NullMemory& memory = null_memory();
  return (access & IBV_ACCESS_LOCAL_WRITE) != 0 ? memory.dropped : memory.zeros;
}

ibv_mr* alloc_null_mr(ibv_pd* verbs) {
  if (check_valid<Domain>(verbs) != 0) return nullptr;
  const NullMemory& memory = null_memory();
  if (memory.error != 0) {
    fail(ENOMEM, fmt::format("soft0: cannot map {} bytes of zeros and as many to drop: {}; raise "
                             "ulimit -v or vm.max_map_count",
                             kMaxMessageBytes, strerror(memory.error)));
    return nullptr;
  }
  const Result<uint32_t> key =
      as_context(verbs->context)
          .rnic->register_region({.access = IBV_ACCESS_LOCAL_WRITE | kNullAccess,
                                  .domain = as_domain(verbs).id,
                                  .sharing = Sharing::kForeign,
                                  .alias = reinterpret_cast<uint64_t>(memory.zeros)});
  if (!key.ok()) {
    fail(key.status());
    return nullptr;
  }
  Region& region = make_region(verbs, *key, nullptr, SIZE_MAX);
  region.verbs.rkey = 0;
  region.is_null = true;
  return &region.verbs;
}

}  // namespace verbena::soft
