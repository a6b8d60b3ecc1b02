// What the runtime of Go may expect of memory that is registered with soft0. It discards pages by
// system calls of its own, which no function in front of the C library's sees: what it could do is
// zero afterwards, and where it was refused it maps other pages there. For programs that have what
// tells a program of Go.
#pragma once

#include <infiniband/verbs.h>
#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "tests/support/process_checks.h"

namespace verbena::test {

inline constexpr int kAccess =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
inline constexpr size_t kPages = 8;

inline size_t page_bytes = 0;

inline bool all(const char* address, size_t bytes, char value) {
  return std::all_of(address, address + bytes, [value](char byte) { return byte == value; });
}

inline void forbid_locked_memory() {
  const rlimit none{0, 0};
  CHECK(setrlimit(RLIMIT_MEMLOCK, &none) == 0);
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct rights[2] = {};  // NOLINT(modernize-avoid-c-arrays): the kernel's
  CHECK(syscall(SYS_capget, &header, rights) == 0);
  rights[0].effective &= ~(1u << CAP_IPC_LOCK);
  CHECK(syscall(SYS_capset, &header, rights) == 0);
}

// As sysUnused() of Go.
inline void discard(char* pages, size_t bytes) {
  if (syscall(SYS_madvise, pages, bytes, MADV_DONTNEED) == 0) return;
  CHECK(errno == EINVAL);
  CHECK(mmap(pages, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
             0) == pages);
}

inline void discarded_pages_are_zero(ibv_pd* domain) {
  const size_t bytes = kPages * page_bytes;
  auto* pages = static_cast<char*>(
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  CHECK(pages != MAP_FAILED);
  for (const int regions : {1, 2}) {  // the second one finds its pages shared
    std::memset(pages, 'a', bytes);
    ibv_mr* made[] = {ibv_reg_mr(domain, pages, bytes, kAccess),
                      regions == 2 ? ibv_reg_mr(domain, pages, bytes, kAccess) : nullptr};
    CHECK(made[0] != nullptr && (made[1] != nullptr) == (regions == 2));
    CHECK(all(pages, bytes, 'a'));
    if (made[1] != nullptr) CHECK(ibv_dereg_mr(made[1]) == 0);
    discard(pages + page_bytes, 2 * page_bytes);
    CHECK(all(pages, page_bytes, 'a'));
    CHECK(all(pages + page_bytes, 2 * page_bytes, 0));
    CHECK(all(pages + 3 * page_bytes, bytes - 3 * page_bytes, 'a'));
    // The program's next object there, and the end of the registration that was forgotten.
    std::memset(pages + page_bytes, 'b', page_bytes);
    if (made[0] != nullptr) CHECK(ibv_dereg_mr(made[0]) == 0);
    CHECK(all(pages, page_bytes, 'a'));
    CHECK(all(pages + page_bytes, page_bytes, 'b'));
    CHECK(all(pages + 2 * page_bytes, page_bytes, 0));
    CHECK(all(pages + 3 * page_bytes, bytes - 3 * page_bytes, 'a'));
    CHECK(syscall(SYS_madvise, pages, bytes, MADV_DONTNEED) == 0);
    CHECK(all(pages, bytes, 0));
  }
  CHECK(munmap(pages, bytes) == 0);
}

// Returns what main() does. With the argument "no-locks" the program may not lock memory.
inline int check_go_memory(int count, char** arguments) {
  page_bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (count > 1 && std::string_view(arguments[1]) == "no-locks") forbid_locked_memory();
  ibv_device** list = ibv_get_device_list(nullptr);
  CHECK(list != nullptr && std::strcmp(list[0]->name, "soft0") == 0);
  ibv_context* context = ibv_open_device(list[0]);
  CHECK(context != nullptr);
  if (context == nullptr) return 1;
  ibv_pd* domain = ibv_alloc_pd(context);
  CHECK(domain != nullptr);
  discarded_pages_are_zero(domain);
  return failures == 0 ? 0 : 1;
}

}  // namespace verbena::test
