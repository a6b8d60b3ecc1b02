#include <fmt/format.h>
#include <unistd.h>

#include "src/base/runtime.h"
#include "src/bench/baselines/contenders/contenders.h"

namespace verbena::bench::baselines {

std::string socket_name() {
  uint64_t number = 0;
  secure_random(&number, sizeof(number));
  return fmt::format("verbena-bench-peers-{}-{:x}", getpid(), number);
}

}  // namespace verbena::bench::baselines
