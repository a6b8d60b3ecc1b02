#include "src/memory/arena.h"

#include <fmt/format.h>
#include <linux/mman.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "src/base/log.h"
#include "src/device/verbs_control.h"
#include "src/memory/socket_topology.h"

namespace verbena {

namespace {

constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

void* map_pages(uint64_t size_bytes, int flags) {
  return mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1,
              0);
}

uint64_t page_bytes() { return static_cast<uint64_t>(sysconf(_SC_PAGESIZE)); }

// Once is enough: what keeps one allocation from its socket keeps all others from theirs.
void log_misplaced_once(const std::string& reason) {
  static std::atomic<bool> logged = false;
  if (!logged.exchange(true)) log_warning("{}", reason);
}

// Registered memory has all its pages: where are they?
void check_place(const void* memory, uint64_t bytes, int socket) {
  if (socket == kAnySocket || machine_sockets().size() == 1) return;
  const int found = socket_of_memory(memory, bytes);
  if (found == socket || machine_sockets()[static_cast<size_t>(socket)].numa_nodes.empty()) return;
  log_misplaced_once(fmt::format(
      "{} registered bytes should lie on socket {}, and lie on {}; free memory there, or use a "
      "device of another socket",
      bytes, socket, found == kAnySocket ? "several sockets" : fmt::format("socket {}", found)));
}

}  // namespace

void RegisteredArena::Release::operator()(char* memory) const {
  if (mapped) {
    munmap(memory, size_bytes);
  } else {
    std::free(memory);
  }
}

RegisteredArena::Memory RegisteredArena::allocate(uint64_t size_bytes) {
  size_bytes = round_up(size_bytes, kCacheLineBytes);
  void* const memory = std::aligned_alloc(kCacheLineBytes, size_bytes);
  if (memory != nullptr) std::memset(memory, 0, size_bytes);
  return {static_cast<char*>(memory), Release{size_bytes, /*mapped=*/false}};
}

RegisteredArena::Memory RegisteredArena::map(uint64_t size_bytes, bool huge_pages) {
  const uint64_t mapped_bytes = round_up(size_bytes, huge_pages ? kHugePageBytes : page_bytes());
  void* address = MAP_FAILED;
  if (mapped_bytes < size_bytes) {
    errno = ENOMEM;
    return {nullptr, Release{}};
  }
  // Pages that were set aside (vm.nr_hugepages); else the kernel may still make some.
  if (huge_pages) address = map_pages(mapped_bytes, MAP_HUGETLB | MAP_HUGE_2MB);
  if (address == MAP_FAILED) address = map_pages(mapped_bytes, 0);
  if (address == MAP_FAILED) return {nullptr, Release{}};
  if (huge_pages) madvise(address, mapped_bytes, MADV_HUGEPAGE);
  return {static_cast<char*>(address), Release{mapped_bytes}};
}

Result<RegisteredArena> RegisteredArena::create(const ProtectionDomain& domain, uint64_t size_bytes,
                                                unsigned access, bool huge_pages, int socket) {
  VERBENA_ASSERT(size_bytes > 0);
  VERBENA_ASSERT((access & IBV_ACCESS_RELAXED_ORDERING) == 0);
  const bool small = domain.control().shares_pages && size_bytes < page_bytes();
  Memory memory = small ? allocate(size_bytes) : map(size_bytes, huge_pages);
  if (memory == nullptr) {
    return Status(StatusCode::kLimitExceeded,
                  fmt::format("cannot allocate {} bytes of registered memory ({}); use fewer or "
                              "smaller messages, or a smaller region",
                              size_bytes, std::strerror(errno)));
  }
  const uint64_t memory_bytes = memory.get_deleter().size_bytes;
  if (small) {
    socket = kAnySocket;  // shares its page with whatever else the allocator put there
  } else if (socket == kAnySocket) {
    socket = socket_of(*domain.get()->context);
  }
  if (const Status placed = place_on_socket(memory.get(), memory_bytes, socket); !placed.ok()) {
    log_misplaced_once(placed.message());
    socket = kAnySocket;
  }
  VERBENA_ASSIGN_OR_RETURN(MemoryRegion region,
                           MemoryRegion::create(domain, memory.get(), memory_bytes, access));
  check_place(memory.get(), memory_bytes, socket);
  return RegisteredArena(std::move(memory), std::move(region));
}

}  // namespace verbena
