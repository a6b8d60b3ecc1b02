#include "src/bench/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "src/bench/size_list.h"

namespace verbena::bench {

std::vector<PointGroup> point_groups(const Plan& plan) {
  std::vector<PointGroup> groups;
  for (uint32_t request_bytes : plan.request_bytes) {
    for (uint32_t response_bytes : plan.response_bytes) {
      for (uint32_t pending : plan.pending) {
        PointGroup group;
        for (Protocol protocol : plan.protocols) {
          const size_t layouts = uses_mark_layout(protocol) ? plan.layouts.size() : 1;
          for (size_t i = 0; i < layouts; ++i) {
            group.push_back({.protocol = protocol,
                             .layout = plan.layouts[i],
                             .request_bytes = request_bytes,
                             .response_bytes = response_bytes,
                             .pending = pending});
          }
        }
        groups.push_back(std::move(group));
      }
    }
  }
  return groups;
}

uint64_t memory_bytes(const Point& point) {
  // Each side has a slot of its own for what it sends and for what it receives.
  return uint64_t{2} * point.pending *
         (uint64_t{point.request_bytes} + uint64_t{point.response_bytes});
}

uint64_t available_memory_bytes() {
  uint64_t available = UINT64_MAX;
  std::ifstream meminfo("/proc/meminfo");
  std::string key;
  for (uint64_t kib = 0; meminfo >> key >> kib; std::getline(meminfo, key)) {
    if (key == "MemAvailable:") available = kib * 1024;
  }
  // Inside a container this is the container's; it reads "max" where there is no limit.
  uint64_t limit = 0;
  uint64_t used = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit &&
      std::ifstream("/sys/fs/cgroup/memory.current") >> used) {
    available = std::min(available, limit > used ? limit - used : 0);
  }
  return available;
}

Status check_plan(const Plan& plan, const DeviceInfo& device) {
  const uint64_t available_bytes = available_memory_bytes();
  for (const PointGroup& group : point_groups(plan)) {
    for (const Point& point : group) {
      if (point.pending + 1 > device.max_queue_pair_wrs) {
        return Status(
            StatusCode::kLimitExceeded,
            fmt::format("{} pending requests are too many: a queue pair of {} takes {} work "
                        "requests; lower --pending",
                        point.pending, device.name, device.max_queue_pair_wrs));
      }
      const uint64_t needed_bytes = memory_bytes(point);
      if (needed_bytes > available_bytes) {
        return Status(
            StatusCode::kLimitExceeded,
            fmt::format("{} pending requests of {} with responses of {} need {} of memory "
                        "on both sides together, {} are available; lower --request, "
                        "--response or --pending",
                        point.pending, size_text(point.request_bytes),
                        size_text(point.response_bytes), size_text(needed_bytes),
                        size_text(available_bytes)));
      }
    }
  }
  return Status::ok_status();
}

}  // namespace verbena::bench
