#include "src/bench/experiment/limits.h"

#include <fmt/format.h>

namespace verbena::bench {

Status check_queue_depth(uint64_t pending, const DeviceInfo& device, std::string_view remedy) {
  if (pending + 1 <= device.max_queue_pair_wrs) return Status::ok_status();
  return Status(StatusCode::kLimitExceeded,
                fmt::format("{} pending requests are too many: a queue pair of {} takes {} work "
                            "requests; lower {}",
                            pending, device.name, device.max_queue_pair_wrs, remedy));
}

}  // namespace verbena::bench
