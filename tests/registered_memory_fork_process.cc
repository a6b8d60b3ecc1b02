// A program with registered memory that forks. Until fork() returns, its child calls no function
// of the memory allocator: threads that the child does not have may hold the allocator's locks. And
// the child may end as programs do, with the destructors of what its parent made.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "src/base/sanitizer.h"
#include "verbena/device.h"

namespace {

struct Calls {
  uint64_t in_parent;
  uint64_t in_child;
};
Calls* calls = nullptr;  // shared with the child
bool forking = false;
pid_t parent = 0;

[[maybe_unused]] void count_call() {
  if (forking) ++(getpid() == parent ? calls->in_parent : calls->in_child);
}

}  // namespace

// The sanitizers put functions of their own there.
#if !VERBENA_ADDRESS_SANITIZER && !VERBENA_THREAD_SANITIZER
extern "C" {

void* __libc_malloc(size_t size_bytes);  // NOLINT(bugprone-reserved-identifier)
void __libc_free(void* memory);          // NOLINT(bugprone-reserved-identifier)

void* malloc(size_t size_bytes) {
  count_call();
  return __libc_malloc(size_bytes);
}
void free(void* memory) {
  count_call();
  __libc_free(memory);
}

}  // extern "C"
#endif

int main() {
  constexpr size_t kBytes = size_t{1} << 20;
  calls = static_cast<Calls*>(
      mmap(nullptr, sizeof(Calls), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  auto* block = static_cast<char*>(
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (calls == MAP_FAILED || block == MAP_FAILED) return 1;
  std::memset(block, 'x', kBytes);
  auto device = verbena::Device::open("soft0");
  if (!device.ok()) return 1;
  const auto domain = verbena::ProtectionDomain::create(*device);
  if (!domain.ok()) return 1;
  const auto region = verbena::MemoryRegion::create(*domain, block, kBytes, IBV_ACCESS_LOCAL_WRITE);
  if (!region.ok()) return 1;
  parent = getpid();
  // A child's child, too: it gets what its parent left.
  for (int generation = 0; generation < 2; ++generation) {
    forking = true;
    const pid_t child = fork();
    forking = false;
    if (child != 0) {
      int status = 1;
      const bool ended = child > 0 && waitpid(child, &status, 0) == child && status == 0;
      // Preparing allocates, so calls are seen.
      std::printf("%llu calls in the parent, %llu in the child\n",
                  static_cast<unsigned long long>(calls->in_parent),
                  static_cast<unsigned long long>(calls->in_child));
      std::fflush(stdout);
      _exit(ended && calls->in_child == 0 ? 0 : 1);
    }
    if (block[0] != 'x' || block[kBytes - 1] != 'x') _exit(1);
    parent = getpid();
  }
#if VERBENA_ADDRESS_SANITIZER
  _exit(0);  // what it leaves to its parent would be leaks
#endif
  return 0;
}
