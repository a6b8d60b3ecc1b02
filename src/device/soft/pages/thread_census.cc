#include "src/device/soft/pages/thread_census.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "src/base/file_descriptor.h"

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

// A thread stays listed for a while after it was joined, and the main thread for as long as others
// run. PF_EXITING is the kernel's mark of a thread that never returns to user code.
bool has_exited(pid_t thread) {
  constexpr unsigned kExiting = 4;
  char text[512];
  snprintf(text, sizeof(text), "/proc/self/task/%d/stat", thread);
  const FileDescriptor file(open(text, O_RDONLY | O_CLOEXEC));
  const ssize_t bytes = file.valid() ? read(file.get(), text, sizeof(text) - 1) : -1;
  if (bytes <= 0) return !file.valid() ? errno == ENOENT : errno == ESRCH;
  text[bytes] = '\0';
  // The name, in brackets, may contain anything.
  const char* fields = strrchr(text, ')');
  unsigned flags = 0;
  return fields != nullptr && sscanf(fields, ") %*c %*d %*d %*d %*d %*d %u", &flags) == 1 &&
         (flags & kExiting) != 0;
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
    // The kernel forgets the list before it tells joiners; one that has just started has none yet.
    if (list == 0 && has_exited(id)) continue;
    if (list == 0 || own_list == 0) {
      threads.push_back({.id = id});
    } else {
      threads.push_back({id, list - own_list + from, list - own_list + to});
    }
  }
  return threads;
}

}  // namespace verbena::soft
