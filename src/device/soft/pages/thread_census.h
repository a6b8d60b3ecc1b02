// The threads of this process, as far as moving its pages concerns them.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

namespace verbena::soft {

struct ThreadPlace {
  pid_t id = 0;
  // What the C library keeps per thread and the kernel writes to by itself (at a thread's end, at
  // every switch): it lies at the upper end of the thread's stack. Empty if nobody knows.
  uint64_t control_begin = 0;
  uint64_t control_end = 0;
};

pid_t this_thread();

// All threads that may still run, the calling one included. Costs about 1 µs per thread plus 20 µs.
std::vector<ThreadPlace> threads_of_process();

}  // namespace verbena::soft
