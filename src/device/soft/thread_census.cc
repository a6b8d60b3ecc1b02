#include "src/device/soft/thread_census.h"

#include <dirent.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>

namespace verbena::soft {

pid_t this_thread() { return static_cast<pid_t>(syscall(SYS_gettid)); }

std::vector<ThreadPlace> threads_of_process() {
  std::vector<ThreadPlace> threads;
  const auto close = [](DIR* directory) { closedir(directory); };
  const std::unique_ptr<DIR, decltype(close)> tasks(opendir("/proc/self/task"), close);
  if (tasks == nullptr) return threads;
  while (const dirent* entry = readdir(tasks.get())) {
    const auto id = static_cast<pid_t>(atoi(entry->d_name));
    if (id <= 0) continue;
    // The list of robust mutexes starts in the thread's control block; the C library tells the
    // kernel where, and the kernel tells us.
    robust_list_head* head = nullptr;
    size_t size = 0;
    syscall(SYS_get_robust_list, id, &head, &size);
    threads.push_back({.id = id, .control_block = reinterpret_cast<uint64_t>(head)});
  }
  return threads;
}

}  // namespace verbena::soft
