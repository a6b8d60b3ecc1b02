// The threads of this process, as far as moving its pages concerns them.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

namespace verbena::soft {

struct ThreadPlace {
  pid_t id = 0;
  // An address within what the C library keeps per thread (struct pthread), which lies at the upper
  // end of the thread's stack; 0 if the kernel does not know one.
  uint64_t control_block = 0;
};

pid_t this_thread();

// All threads, the calling one included. Costs about 1 µs per thread plus 20 µs.
std::vector<ThreadPlace> threads_of_process();

}  // namespace verbena::soft
