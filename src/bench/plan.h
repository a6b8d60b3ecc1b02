// Everything that one benchmark is to measure, and in which order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/bench/point.h"
#include "src/bench/run.h"
#include "verbena/device.h"
#include "verbena/status.h"

namespace verbena::bench {

struct Plan {
  std::vector<Protocol> protocols;
  std::vector<MarkLayout> layouts = {MarkLayout::kLastBit};
  std::vector<uint32_t> request_bytes = {64};
  std::vector<uint32_t> response_bytes = {64};
  std::vector<uint32_t> pending = {1};
  uint32_t runs = 3;
  RunOptions run;
};

// Points that differ in protocol and mark layout only. Their runs take turns, since machines change
// their speed from minute to minute: what is compared must be measured side by side.
using PointGroup = std::vector<Point>;
std::vector<PointGroup> point_groups(const Plan& plan);

// Whether the plan can be carried out on this device and machine, before anything starts.
//   kLimitExceeded  too many pending requests for a queue pair, or more memory than there is
Status check_plan(const Plan& plan, const DeviceInfo& device);

// Memory of both sides' slots.
uint64_t memory_bytes(const Point& point);
// Memory that this process could still get, by the machine and by the limit of its control group;
// UINT64_MAX if that cannot be found out.
uint64_t available_memory_bytes();

}  // namespace verbena::bench
