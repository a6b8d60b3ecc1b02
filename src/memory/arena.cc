#include "src/memory/arena.h"

#include <fmt/format.h>
#include <linux/mman.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace verbena {

namespace {

constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

void* map(uint64_t size_bytes, int flags) {
  return mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1,
              0);
}

}  // namespace

void RegisteredArena::Unmap::operator()(char* memory) const { munmap(memory, size_bytes); }

Result<RegisteredArena> RegisteredArena::create(const ProtectionDomain& domain, uint64_t size_bytes,
                                                unsigned access, bool huge_pages) {
  VERBENA_ASSERT(size_bytes > 0);
  VERBENA_ASSERT((access & IBV_ACCESS_RELAXED_ORDERING) == 0);
  const auto page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t mapped_bytes = round_up(size_bytes, huge_pages ? kHugePageBytes : page_bytes);
  void* address = MAP_FAILED;
  if (mapped_bytes >= size_bytes) {
    // Pages that were set aside (vm.nr_hugepages); else the kernel may still make some.
    if (huge_pages) address = map(mapped_bytes, MAP_HUGETLB | MAP_HUGE_2MB);
    if (address == MAP_FAILED) address = map(mapped_bytes, 0);
    if (huge_pages && address != MAP_FAILED) madvise(address, mapped_bytes, MADV_HUGEPAGE);
  }
  if (address == MAP_FAILED) {
    return Status(
        StatusCode::kLimitExceeded,
        fmt::format("no {} bytes of memory for a connection's slots ({}); use fewer or "
                    "smaller slots",
                    size_bytes, std::strerror(mapped_bytes < size_bytes ? ENOMEM : errno)));
  }
  Memory memory(static_cast<char*>(address), Unmap{mapped_bytes});
  VERBENA_ASSIGN_OR_RETURN(MemoryRegion region,
                           MemoryRegion::create(domain, address, mapped_bytes, access));
  return RegisteredArena(std::move(memory), std::move(region));
}

}  // namespace verbena
