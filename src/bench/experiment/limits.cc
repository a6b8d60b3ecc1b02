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

Status check_atomics(const DeviceInfo& device, std::string_view who) {
  if (device.atomics) return Status::ok_status();
  return {
      StatusCode::kUnsupported,
      fmt::format("{} has no atomics, which {} needs; choose another --device", device.name, who)};
}

Status check_shuffle(const DeviceInfo& device, ShuffleMethod method, uint32_t batch,
                     std::string_view things) {
  VERBENA_RETURN_IF_ERROR(check_atomics(device, "the shuffle"));
  if (method != ShuffleMethod::kSgl || batch <= device.max_sges) return Status::ok_status();
  return {StatusCode::kLimitExceeded,
          fmt::format("a batch of {} {} takes {} gather entries, {} has {}; lower --batch, or "
                      "choose another --method",
                      batch, things, batch, device.name, device.max_sges)};
}

}  // namespace verbena::bench
