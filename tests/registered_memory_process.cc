// What a program that links the library may expect of memory that was registered: it is private
// memory again, so that memory allocators are right to take zeroes for granted after MADV_DONTNEED.
// Run with the allocator of the C library and with others.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "verbena/device.h"

namespace {

constexpr unsigned kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
constexpr size_t kBlockBytes = size_t{4} << 20;

int failures = 0;

void check_at(bool holds, const char* what, int line) {
  if (holds) return;
  std::printf("FAILED in line %d: %s (errno: %s)\n", line, what, std::strerror(errno));
  ++failures;
}
#define CHECK(condition) check_at((condition), #condition, __LINE__)

// Compilers know what calloc() returns.
char* zeroed_block() {
  void* volatile block = std::calloc(1, kBlockBytes);
  return static_cast<char*>(block);
}

void register_once(const verbena::ProtectionDomain& domain, void* address, size_t bytes) {
  const auto region = verbena::MemoryRegion::create(domain, address, bytes, kAccess);
  CHECK(region.ok());
}

bool all(const char* bytes, size_t size, char value) {
  return std::all_of(bytes, bytes + size, [value](char byte) { return byte == value; });
}

// An allocator keeps freed blocks, discards their pages, and hands them out as zeroes.
void calloc_is_zero(const verbena::ProtectionDomain& domain) {
  for (int round = 0; round < 20; ++round) {
    auto* block = static_cast<char*>(std::malloc(kBlockBytes));
    std::memset(block, 'x', kBlockBytes);
    register_once(domain, block, kBlockBytes);
    CHECK(all(block, kBlockBytes, 'x'));
    std::free(block);
    char* zeroed = zeroed_block();
    CHECK(all(zeroed, kBlockBytes, 0));
    std::free(zeroed);
  }
}

void madvise_discards(const verbena::ProtectionDomain& domain) {
  const auto page_bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  auto* pages = static_cast<char*>(
      mmap(nullptr, kBlockBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  std::memset(pages, 'x', kBlockBytes);
  register_once(domain, pages + page_bytes + 100, kBlockBytes / 2);
  CHECK(all(pages, kBlockBytes, 'x'));
  // As a program does that calls the kernel itself.
  CHECK(syscall(SYS_madvise, pages, kBlockBytes, MADV_DONTNEED) == 0);
  CHECK(all(pages, kBlockBytes, 0));
  // It grows, as private memory does, and what it grows by is empty.
  std::memset(pages, 'y', kBlockBytes);
  register_once(domain, pages, kBlockBytes);
  void* grown = mremap(pages, kBlockBytes, 2 * kBlockBytes, MREMAP_MAYMOVE);
  CHECK(grown != MAP_FAILED);
  if (grown == MAP_FAILED) return;
  pages = static_cast<char*>(grown);
  CHECK(all(pages, kBlockBytes, 'y'));
  CHECK(all(pages + kBlockBytes, kBlockBytes, 0));
  // A child that the C library knows nothing of has its own.
  register_once(domain, pages, 2 * kBlockBytes);
  const auto child = static_cast<pid_t>(syscall(SYS_fork));
  if (child == 0) {
    std::memset(pages, 'z', 2 * kBlockBytes);
    _exit(0);
  }
  int status = 1;
  CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
  CHECK(all(pages, kBlockBytes, 'y'));
  munmap(pages, 2 * kBlockBytes);
}

}  // namespace

int main() {
  auto device = verbena::Device::open("soft0");
  CHECK(device.ok());
  if (!device.ok()) return 1;
  const auto domain = verbena::ProtectionDomain::create(*device);
  CHECK(domain.ok());
  if (!domain.ok()) return 1;
  madvise_discards(*domain);
  calloc_is_zero(*domain);
  return failures == 0 ? 0 : 1;
}
