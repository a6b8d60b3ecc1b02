// What a program may expect of its own memory calls on pages that were registered with soft0: they
// behave like the private memory that it asked for.
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "tests/support/process_checks.h"

namespace {

using verbena::test::failures;

constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
constexpr size_t kPages = 8;

ibv_pd* domain = nullptr;
// Pages are shared with peers as long as they are registered, and ordinary memory afterwards.
bool stays_registered = false;
size_t page_bytes = 0;

char* map_pages(void* address, size_t pages, int flags) {
  void* mapped = mmap(address, pages * page_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  CHECK(mapped != MAP_FAILED);
  return static_cast<char*>(mapped);
}

void share(void* address, size_t bytes) {
  ibv_mr* region = ibv_reg_mr(domain, address, bytes, kAccess);
  CHECK(region != nullptr);
  if (region != nullptr && !stays_registered) CHECK(ibv_dereg_mr(region) == 0);
}

bool all(const char* address, size_t bytes, char value) {
  return std::all_of(address, address + bytes, [value](char byte) { return byte == value; });
}

void registration_keeps_the_contents() {
  char* pages = map_pages(nullptr, kPages, 0);
  std::memset(pages, 'a', kPages * page_bytes);
  share(pages + 100, 3 * page_bytes);
  CHECK(all(pages, kPages * page_bytes, 'a'));
  CHECK(munmap(pages, kPages * page_bytes) == 0);
}

void dont_need_gives_zeros() {
  char* pages = map_pages(nullptr, kPages, 0);
  std::memset(pages, 'b', kPages * page_bytes);
  share(pages, kPages * page_bytes);
  CHECK(madvise(pages + page_bytes, 2 * page_bytes, MADV_DONTNEED) == 0);
  CHECK(all(pages, page_bytes, 'b'));
  CHECK(all(pages + page_bytes, 2 * page_bytes, 0));
  CHECK(all(pages + 3 * page_bytes, (kPages - 3) * page_bytes, 'b'));
  // The pages are as usable as before.
  std::memset(pages, 'c', kPages * page_bytes);
  share(pages, kPages * page_bytes);
  CHECK(all(pages, kPages * page_bytes, 'c'));
  CHECK(munmap(pages, kPages * page_bytes) == 0);
}

void free_is_allowed() {
  char* pages = map_pages(nullptr, kPages, 0);
  std::memset(pages, 'd', kPages * page_bytes);
  share(pages, kPages * page_bytes);
  CHECK(madvise(pages, page_bytes, MADV_FREE) == 0);
  CHECK(all(pages, page_bytes, 'd') || all(pages, page_bytes, 0));
  CHECK(all(pages + page_bytes, (kPages - 1) * page_bytes, 'd'));
  errno = 0;
  CHECK(madvise(pages + 1, page_bytes, MADV_FREE) == -1 && errno == EINVAL);
  CHECK(munmap(pages, kPages * page_bytes) == 0);
}

void unmapped_pages_come_back_empty() {
  char* pages = map_pages(nullptr, kPages, 0);
  std::memset(pages, 'e', kPages * page_bytes);
  share(pages, kPages * page_bytes);
  CHECK(munmap(pages, kPages * page_bytes) == 0);
  char* again = map_pages(pages, kPages, MAP_FIXED_NOREPLACE);
  CHECK(again == pages);
  share(again, kPages * page_bytes);
  CHECK(all(again, kPages * page_bytes, 0));
  CHECK(munmap(again, kPages * page_bytes) == 0);
}

void a_fixed_mapping_replaces_pages() {
  char* pages = map_pages(nullptr, kPages, 0);
  std::memset(pages, 'f', kPages * page_bytes);
  share(pages, kPages * page_bytes);
  CHECK(map_pages(pages + page_bytes, 1, MAP_FIXED) == pages + page_bytes);
  CHECK(all(pages + page_bytes, page_bytes, 0));
  share(pages, kPages * page_bytes);
  CHECK(all(pages, page_bytes, 'f'));
  CHECK(all(pages + page_bytes, page_bytes, 0));
  CHECK(all(pages + 2 * page_bytes, (kPages - 2) * page_bytes, 'f'));
  CHECK(munmap(pages, kPages * page_bytes) == 0);
}

void moved_pages_keep_their_contents() {
  char* pages = map_pages(nullptr, kPages, 0);
  std::memset(pages, 'g', kPages * page_bytes);
  share(pages, kPages * page_bytes);
  char* target = map_pages(nullptr, 2 * kPages, 0);
  void* moved = mremap(pages, kPages * page_bytes, kPages * page_bytes,
                       MREMAP_MAYMOVE | MREMAP_FIXED, target);
  CHECK(moved == target);
  CHECK(all(target, kPages * page_bytes, 'g'));
  // Others at the old address, shared too, are other pages.
  char* others = map_pages(pages, kPages, MAP_FIXED_NOREPLACE);
  CHECK(others == pages);
  std::memset(others, 'h', kPages * page_bytes);
  share(others, kPages * page_bytes);
  CHECK(all(target, kPages * page_bytes, 'g'));
  share(target, kPages * page_bytes);
  CHECK(all(target, kPages * page_bytes, 'g'));
  CHECK(all(others, kPages * page_bytes, 'h'));
  std::memset(target, 'i', kPages * page_bytes);
  CHECK(all(others, kPages * page_bytes, 'h'));
  CHECK(munmap(others, kPages * page_bytes) == 0);
  CHECK(all(target, kPages * page_bytes, 'i'));
  CHECK(munmap(target, 2 * kPages * page_bytes) == 0);
}

// The old address stays mapped, without contents: what is written there is not in the new pages.
void moved_pages_that_stay_mapped_are_empty() {
  for (const int fixed : {0, MREMAP_FIXED}) {
    char* pages = map_pages(nullptr, kPages, 0);
    std::memset(pages, 'q', kPages * page_bytes);
    ibv_mr* region = ibv_reg_mr(domain, pages, kPages * page_bytes, kAccess);
    CHECK(region != nullptr);
    char* target = fixed != 0 ? map_pages(nullptr, kPages, 0) : nullptr;
    auto* moved = static_cast<char*>(mremap(pages, kPages * page_bytes, kPages * page_bytes,
                                            MREMAP_MAYMOVE | MREMAP_DONTUNMAP | fixed, target));
    CHECK(moved != MAP_FAILED && moved != pages);
    if (moved == MAP_FAILED) continue;
    CHECK(all(moved, kPages * page_bytes, 'q'));
    CHECK(madvise(pages, kPages * page_bytes, MADV_NORMAL) == 0);  // ENOMEM: it is not mapped
    CHECK(all(pages, kPages * page_bytes, 0));
    std::memset(pages, 'r', kPages * page_bytes);
    if (region != nullptr) CHECK(ibv_dereg_mr(region) == 0);
    CHECK(all(moved, kPages * page_bytes, 'q'));
    CHECK(all(pages, kPages * page_bytes, 'r'));
    CHECK(munmap(moved, kPages * page_bytes) == 0);
    CHECK(munmap(pages, kPages * page_bytes) == 0);
  }
}

void grown_pages_keep_their_contents() {
  char* pages = map_pages(nullptr, kPages, 0);
  std::memset(pages, 'n', kPages * page_bytes);
  share(pages, kPages * page_bytes);
  // In place or not at all.
  void* in_place = mremap(pages, kPages * page_bytes, 2 * kPages * page_bytes, 0);
  CHECK(in_place == MAP_FAILED || in_place == pages);
  const size_t had = in_place == pages ? 2 * kPages : kPages;
  CHECK(all(pages, kPages * page_bytes, 'n'));
  auto* grown =
      static_cast<char*>(mremap(pages, had * page_bytes, 4 * kPages * page_bytes, MREMAP_MAYMOVE));
  CHECK(grown != MAP_FAILED);
  CHECK(all(grown, kPages * page_bytes, 'n'));
  CHECK(all(grown + kPages * page_bytes, 3 * kPages * page_bytes, 0));
  share(grown, 4 * kPages * page_bytes);
  CHECK(all(grown, kPages * page_bytes, 'n'));
  CHECK(munmap(grown, 4 * kPages * page_bytes) == 0);
}

// Also where sharing has made several mappings of the program's one: for a part of it, and from
// 128 KiB on for its first page.
void partly_shared_and_large_pages_grow() {
  for (const size_t shared_pages : {size_t{16}, size_t{256}}) {
    constexpr size_t kLarge = 256;
    char* pages = map_pages(nullptr, kLarge, 0);
    std::memset(pages, 'p', kLarge * page_bytes);
    ibv_mr* region = ibv_reg_mr(domain, pages, shared_pages * page_bytes, kAccess);
    CHECK(region != nullptr);
    auto* grown = static_cast<char*>(
        mremap(pages, kLarge * page_bytes, 2 * kLarge * page_bytes, MREMAP_MAYMOVE));
    CHECK(grown != MAP_FAILED);
    if (region != nullptr) CHECK(ibv_dereg_mr(region) == 0);
    if (grown == MAP_FAILED) continue;
    CHECK(all(grown, kLarge * page_bytes, 'p'));
    CHECK(all(grown + kLarge * page_bytes, kLarge * page_bytes, 0));
    share(grown, 2 * kLarge * page_bytes);
    CHECK(all(grown, kLarge * page_bytes, 'p'));
    CHECK(munmap(grown, 2 * kLarge * page_bytes) == 0);
  }
}

void a_shrunk_mapping_keeps_its_head() {
  char* pages = map_pages(nullptr, kPages, 0);
  std::memset(pages, 'j', kPages * page_bytes);
  share(pages, kPages * page_bytes);
  CHECK(mremap(pages, kPages * page_bytes, 2 * page_bytes, 0) == pages);
  CHECK(all(pages, 2 * page_bytes, 'j'));
  char* tail = map_pages(pages + 2 * page_bytes, kPages - 2, MAP_FIXED_NOREPLACE);
  share(tail, (kPages - 2) * page_bytes);
  CHECK(all(tail, (kPages - 2) * page_bytes, 0));
  CHECK(munmap(pages, kPages * page_bytes) == 0);
}

// The C library maps large blocks, moves them in realloc() and unmaps them in free(), without the
// program's functions.
void large_blocks_of_malloc() {
  constexpr size_t kBlockBytes = size_t{1} << 20;
  for (int round = 0; round < 5; ++round) {
    auto* block = static_cast<char*>(std::malloc(kBlockBytes));
    std::memset(block, 'k', kBlockBytes);
    share(block, kBlockBytes);
    auto* grown = static_cast<char*>(std::realloc(block, 64 * kBlockBytes));
    CHECK(all(grown, kBlockBytes, 'k'));
    auto* other = static_cast<char*>(std::malloc(kBlockBytes));  // often where `block` was
    std::memset(other, 'l', kBlockBytes);
    share(other, kBlockBytes);
    CHECK(all(grown, kBlockBytes, 'k'));
    CHECK(all(other, kBlockBytes, 'l'));
    std::memset(grown, 'm', 64 * kBlockBytes);
    share(grown, 64 * kBlockBytes);
    CHECK(all(grown, 64 * kBlockBytes, 'm'));
    CHECK(all(other, kBlockBytes, 'l'));
    std::free(other);
    CHECK(all(grown, 64 * kBlockBytes, 'm'));
    std::free(grown);
    auto* zeroed = static_cast<char*>(std::calloc(1, kBlockBytes));
    share(zeroed, kBlockBytes);
    CHECK(all(zeroed, kBlockBytes, 0));
    std::free(zeroed);
  }
}

void calls_fail_as_ever() {
  errno = 0;
  CHECK(munmap(reinterpret_cast<void*>(1), page_bytes) == -1 && errno == EINVAL);
  errno = 0;
  CHECK(mmap(nullptr, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED &&
        errno == EINVAL);
  errno = 0;
  CHECK(mremap(reinterpret_cast<void*>(1), page_bytes, page_bytes, 0) == MAP_FAILED &&
        errno == EINVAL);
  char* pages = map_pages(nullptr, kPages, 0);
  std::memset(pages, 'o', kPages * page_bytes);
  share(pages, kPages * page_bytes);
  errno = 0;
  CHECK(mremap(pages, 2 * page_bytes, 2 * page_bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
               pages + page_bytes) == MAP_FAILED &&
        errno == EINVAL);
  CHECK(all(pages, kPages * page_bytes, 'o'));
  // What the kernel refuses leaves the pages as they are.
  errno = 0;
  CHECK(mmap(pages, page_bytes, PROT_READ, MAP_PRIVATE | MAP_FIXED, -1, 0) == MAP_FAILED &&
        errno == EBADF);
  const int read_only = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  errno = 0;
  CHECK(mmap(pages, page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, read_only, 0) ==
            MAP_FAILED &&
        errno == EACCES);
  errno = 0;
  CHECK(mmap(pages, page_bytes, PROT_READ, MAP_PRIVATE | MAP_FIXED, read_only, 1) == MAP_FAILED &&
        errno == EINVAL);
  close(read_only);
  CHECK(mremap(pages, kPages * page_bytes, SIZE_MAX, MREMAP_MAYMOVE) == MAP_FAILED);
  errno = 0;
  CHECK(mremap(pages, kPages * page_bytes, page_bytes, 1 << 20) == MAP_FAILED && errno == EINVAL);
  errno = 0;
  CHECK(munmap(pages, SIZE_MAX) == -1 && errno == EINVAL);
  CHECK(all(pages, kPages * page_bytes, 'o'));
  if (mlock(pages, page_bytes) == 0) {
    errno = 0;
    CHECK(madvise(pages, page_bytes, MADV_DONTNEED) == -1 && errno == EINVAL);
    CHECK(all(pages, kPages * page_bytes, 'o'));
    CHECK(munlock(pages, page_bytes) == 0);
  }
  CHECK(munmap(pages + (kPages - 1) * page_bytes, page_bytes) == 0);
  errno = 0;
  CHECK(madvise(pages, kPages * page_bytes, MADV_DONTNEED) == -1 && errno == ENOMEM);
  CHECK(all(pages, (kPages - 1) * page_bytes, 0));
  CHECK(munmap(pages, (kPages - 1) * page_bytes) == 0);
}

}  // namespace

int main() {
  page_bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  ibv_device** list = ibv_get_device_list(nullptr);
  CHECK(list != nullptr && std::strcmp(list[0]->name, "soft0") == 0);
  ibv_context* context = ibv_open_device(list[0]);
  CHECK(context != nullptr);
  if (context == nullptr) return 1;
  domain = ibv_alloc_pd(context);
  CHECK(domain != nullptr);

  for (const bool stays : {false, true}) {
    stays_registered = stays;
    registration_keeps_the_contents();
    dont_need_gives_zeros();
    free_is_allowed();
    unmapped_pages_come_back_empty();
    a_fixed_mapping_replaces_pages();
    moved_pages_keep_their_contents();
    moved_pages_that_stay_mapped_are_empty();
    grown_pages_keep_their_contents();
    partly_shared_and_large_pages_grow();
    a_shrunk_mapping_keeps_its_head();
    large_blocks_of_malloc();
    calls_fail_as_ever();
  }
  return failures == 0 ? 0 : 1;
}
