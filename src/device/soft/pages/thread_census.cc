#include "src/device/soft/pages/thread_census.h"

#include <dirent.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <memory>

// Where the C library keeps the area for restartable sequences, from glibc 2.35 on.
extern "C" __attribute__((weak)) const std::ptrdiff_t __rseq_offset;  // NOLINT

namespace verbena::soft {

namespace {

// The list of robust mutexes starts in the thread's control block; the C library tells the kernel
// where, and the kernel tells us.
uint64_t robust_list_of(pid_t thread) {
  robust_list_head* head = nullptr;
  size_t size = 0;
  syscall(SYS_get_robust_list, thread, &head, &size);
  return reinterpret_cast<uint64_t>(head);
}

}  // namespace

pid_t this_thread() { return static_cast<pid_t>(syscall(SYS_gettid)); }

std::vector<ThreadPlace> threads_of_process() {
  std::vector<ThreadPlace> threads;
  const auto close = [](DIR* directory) { closedir(directory); };
  const std::unique_ptr<DIR, decltype(close)> tasks(opendir("/proc/self/task"), close);
  if (tasks == nullptr) return threads;
  // Control blocks of all threads look alike: what this thread knows of its own holds for others.
  const uint64_t own_list = robust_list_of(this_thread());
  const auto own_begin = static_cast<uint64_t>(pthread_self());
  uint64_t from = std::min(own_begin, own_list);
  uint64_t to = std::max(own_begin, own_list) + sizeof(robust_list_head);
  if (&__rseq_offset != nullptr) {
    constexpr uint64_t kAreaBytes = 32;  // what the kernel writes of it
    const uint64_t area = reinterpret_cast<uint64_t>(__builtin_thread_pointer()) +
                          static_cast<uint64_t>(__rseq_offset);
    from = std::min(from, area);
    to = std::max(to, area + kAreaBytes);
  }
  while (const dirent* entry = readdir(tasks.get())) {
    const auto id = static_cast<pid_t>(atoi(entry->d_name));
    if (id <= 0) continue;
    const uint64_t list = robust_list_of(id);
    if (list == 0 || own_list == 0) {
      threads.push_back({.id = id});
    } else {
      threads.push_back({id, list - own_list + from, list - own_list + to});
    }
  }
  return threads;
}

}  // namespace verbena::soft
